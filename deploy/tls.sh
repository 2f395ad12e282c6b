#!/bin/sh
# Make a certificate authority and certificates for Dask's scheduler, workers and clients.
#
#   deploy/tls.sh FOLDER [NAME ...]
#
# NAME is a host name or an IP address under which the scheduler or workers are reached, beside this machine's own
# loopback ones. FOLDER then holds ca.pem, scheduler.pem, worker.pem and client.pem, each with its NAME-key.pem that
# only its owner can read. Run again, it makes only what is missing, expires within 30 days or has other names.
#
# All three are one trust: whoever holds a key that this authority signed can run code on the cluster. Dask checks
# that a peer's certificate comes from ca.pem, not the host names in it; these are for other tools. Keep ca-key.pem
# off the machines of the cluster: nothing there reads it.
set -eu
umask 077

days_of_authority=3650
days_of_certificate=365
renew_within_s=$((30 * 24 * 3600))

fail() { echo "tls.sh: $*" >&2; exit 1; }

[ $# -ge 1 ] || fail "which folder? usage: deploy/tls.sh FOLDER [NAME ...]"
command -v openssl >/dev/null || fail "openssl is not installed here"
folder=$1
shift
mkdir -p "$folder"
cd "$folder"

names="DNS:localhost,IP:127.0.0.1,IP:0:0:0:0:0:0:0:1"
for name; do
    case $name in
        *[!A-Za-z0-9.:*-]* | '' | -*) fail "'$name' is neither a host name nor an IP address" ;;
        *:*) names="$names,IP:$name" ;;
        *[!0-9.]*) names="$names,DNS:$name" ;;
        *) names="$names,IP:$name" ;;
    esac
done

new_key() { # NAME
    openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1-key.pem.new" 2>/dev/null ||
        openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1-key.pem.new"
    chmod 600 "$1-key.pem.new"
}

publish() { # NAME: both files by renaming, so that no reader meets half a file
    mv "$1-key.pem.new" "$1-key.pem"
    chmod 644 "$1.pem.new"
    mv "$1.pem.new" "$1.pem"
}

holds() { # NAME: certificate and key are there, belong together and last
    [ -s "$1.pem" ] && [ -s "$1-key.pem" ] &&
        openssl x509 -in "$1.pem" -noout -checkend "$renew_within_s" >/dev/null 2>&1 &&
        [ "$(openssl x509 -in "$1.pem" -noout -pubkey)" = "$(openssl pkey -in "$1-key.pem" -pubout)" ]
}

if holds ca; then
    echo "ca: kept"
else
    new_key ca
    openssl req -x509 -new -sha256 -key ca-key.pem.new -days "$days_of_authority" -out ca.pem.new \
        -subj "/O=rff_dist/CN=rff_dist Dask authority" \
        -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign,cRLSign"
    publish ca
    echo "ca: made, for $days_of_authority days"
fi

signed_for() { # NAME USES: also by this authority, with the names that were asked for
    [ -s "$1.names" ] && [ "$(cat "$1.names")" = "$names $2" ] &&
        openssl verify -CAfile ca.pem "$1.pem" >/dev/null 2>&1
}

certificate() { # NAME USES
    if holds "$1" && signed_for "$1" "$2"; then
        echo "$1: kept"
        return
    fi
    new_key "$1"
    printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" \
        "extendedKeyUsage=$2" "subjectAltName=$names" >"$1.extensions"
    openssl req -new -sha256 -key "$1-key.pem.new" -subj "/O=rff_dist/CN=rff_dist $1" -out "$1.request"
    # A random serial number of its own, so that no file counts them.
    openssl x509 -req -sha256 -in "$1.request" -CA ca.pem -CAkey ca-key.pem -set_serial "0x$(openssl rand -hex 16)" \
        -days "$days_of_certificate" -extfile "$1.extensions" -out "$1.pem.new" 2>/dev/null
    rm -f "$1.request" "$1.extensions"
    publish "$1"
    echo "$names $2" >"$1.names"
    echo "$1: made, for $days_of_certificate days"
}

# The scheduler calls workers and workers call each other, so both are server and client.
certificate scheduler serverAuth,clientAuth
certificate worker serverAuth,clientAuth
certificate client clientAuth
