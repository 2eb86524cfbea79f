"""Run torchrun inside a rank, as an evaluation harness does; its ranks run the command in the arguments, or `echo`."""

import json
import os
import subprocess
import sys
from pathlib import Path

torchrun = Path(sys.executable).with_name("torchrun")
words = sys.argv[1:] or ["sh", "-c", "echo inner $WORLD_SIZE"]
inner = [torchrun, "--nproc-per-node", "1", "--no-python", *words]
said = subprocess.run(inner, check=False, stdout=subprocess.PIPE, text=True, timeout=30)
pet = sorted(name for name in os.environ if name.startswith("PET_"))
print(json.dumps({"pet": pet, "code": said.returncode, "said": said.stdout.strip()}))
if said.returncode:
    sys.stderr.write(f"the inner run failed with {said.returncode}\n")
    sys.exit(42)
