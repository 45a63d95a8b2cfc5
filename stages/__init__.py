"""The models of the pipeline, each behind one small Protocol of `voicepipe.protocols`: `stt` hears,
`llm` answers, `tts` speaks. Stages know the core, never each other, and each has a scripted twin
that needs no model."""

import os

# Threads of GNU OpenMP (in torch and CTranslate2) wait for each other hundreds of times a step, and
# by default burn a core for 8 ms before they sleep. When another stage has the other core, a step
# then takes seconds. 1000 turns are about 65 us: on two idle cores a token takes 20 ms, with a busy
# one twice as long as on one thread, where not sleeping at all takes 16 ms and 2 s, and sleeping at
# once 27 ms and as long as on one thread. OpenMP reads this when it is loaded.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
