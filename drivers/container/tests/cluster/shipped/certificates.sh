#!/bin/sh
# Makes the certificates of docs/drivers/deployment.md in a folder. The driver's is good for this host, too.
#
#   certificates.sh FOLDER
set -eu
mkdir -p "$1"
cd "$1"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=capcmi-drivers -keyout ca.key -out ca.crt 2>/dev/null
for name in capcmi-driver capcmi-driver-client; do
    openssl req -newkey rsa:2048 -nodes -subj "/CN=$name" -keyout "$name.key" -out "$name.csr" 2>/dev/null
    echo "subjectAltName=DNS:$name.capcmi-system.svc,DNS:localhost" >"$name.ext"
    openssl x509 -req -days 2 -in "$name.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -extfile "$name.ext" \
        -out "$name.crt" 2>/dev/null
done
