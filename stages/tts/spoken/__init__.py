"""The parts of `stages.tts.speech_text`: each knows how one kind of written thing is said."""
