"""The models of the pipeline, each behind one small Protocol of `voicepipe.protocols`: `stt` hears,
`llm` answers, `tts` speaks. Stages know the core, never each other, and each has a scripted twin
that needs no model."""
