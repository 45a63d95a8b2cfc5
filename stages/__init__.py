"""The models of the pipeline, each behind one small Protocol of `voicepipe.protocols`: `stt` hears,
`llm` answers, `tts` speaks. Stages know the core, never each other, and each has a scripted twin
that needs no model."""

import os

# Threads of OpenMP (in torch and CTranslate2) wait for each other hundreds of times a step, and by
# default burn a core for 8 ms before they sleep. When another stage has the other core, a step then
# takes seconds instead of 50 ms. OpenMP reads this when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
