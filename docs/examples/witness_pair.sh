#!/bin/sh
# Takes the witnesses of one server on P1's looped path and on the newest, and checks both.
#
#     docs/examples/witness_pair.sh OUT [COMMIT]
#
# It needs a CUDA device, and makes a random model of the 4B shape. P1's server forms batches and
# loops over their rows, so only S7 must refuse its witness; that of the newest path must be
# admitted. SHAPE=nano DEVICE=cpu tries the script anywhere and proves nothing: S7 is about time.
#
# OUT gets the witness, its page, the verdict and the server's log of each path. PATHS=p1 takes only
# one path.
set -eu
mkdir -p "${1:?where the witnesses go is missing}"
out=$(cd "$1" && pwd)
cd "$(dirname "$0")/../.."
commit=${2:-$(git rev-parse HEAD)}
shape=${SHAPE:-4b}
python=${PYTHON:-python3}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2> "$work/gone" || :; rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# The server has no binary; the digest of the list of its sources and their digests replaces it.
find engine phases falsifiers contracts rowtwin.py -name '*.py' -o -name '*.cu' -o -name '*.cuh' |
    LC_ALL=C sort | xargs sha256sum > "$work/sources"
model=$work/$shape-shape.gguf
"$python" rowtwin.py model make "$model" --shape "$shape" --quant q4_k_m

serve() { # PATH
    "$python" rowtwin.py serve "$model" --path "$1" --device "${DEVICE:-cuda}" --port 0 \
        --context 256 > "$work/said" 2> "$out/$1.log" &
    server=$!
    until grep -q ' at http' "$work/said"; do
        kill -0 "$server" 2> "$work/gone" || { cat "$out/$1.log" >&2; exit 1; }
        sleep 0.2
    done
    cat "$work/said"
    url=$(sed 's|.* at \(http[^ ]*\) .*|\1|' "$work/said")
}

witness() { "$python" rowtwin.py witness "$url" --prompt the "$@"; }

take() { # PATH WARM OPTION...
    path=$1 warm=$2
    shift 2
    serve "$path"
    # what the first requests of a width compile or capture is no part of its rate
    witness --n-predict 2 --declared-min 2 --replicates 1 --c "$warm" --out "$work/warm" > "$work/w" || :
    witness --n-predict 64 --model-file "$model" --binary "$work/sources" --commit "$commit" \
        --out "$out/$path.json" --html "$out/$path.html" "$@" || :
    "$python" rowtwin.py witness check "$out/$path.json" --model-prefix "$shape-shape" \
        > "$out/$path.txt" || :
    cat "$out/$path.txt"
    kill "$server"
    wait "$server" || :
    server=
}

for one in ${PATHS:-newest p1}; do
    case $one in
    p1) take p1 1 --replicates 1 --no-mixed --timeout 1800 ;; # 0.4 s a row and step
    *) take "$one" 1,4,8,16 ;;
    esac
done
