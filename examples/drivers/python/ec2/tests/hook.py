"""A hook of the conformance suite: `hook.py CONSOLE HOOK [MACHINE CLUSTER IDENTITY AMOUNT]`. See ec2_server.py."""

import sys
from urllib.parse import urlencode
from urllib.request import urlopen

console, hook, *about = sys.argv[1:]
query = urlencode({key: value for key, value in zip(("machine", "cluster", "identity", "amount"), about, strict=False)})
with urlopen(f"{console}/console/{hook}?{query}", timeout=60) as answer:
    sys.stdout.buffer.write(answer.read())
