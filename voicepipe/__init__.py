"""voicepipe: a real-time voice agent framework built around a latency budget."""
