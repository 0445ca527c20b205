#!/usr/bin/env bash
# Makes the secrets of docker/compose.yaml, once: docker/secrets.sh [FOLDER]. What is there is kept,
# so that it may be run again. Only this user can enter the folder; containers see single files.
set -euo pipefail

folder=${1:-$(dirname "$0")/secrets}
# Users that read events and do nothing else.
read -ra names <<< "${SHIFTWORK_MONITORING_USERS:-}"
services=(submit scheduler launcher log_collector quota monitor gateway)

# Letters and digits only: nats-server reads a variable's value like the text of its file.
random() { head -c 24 /dev/urandom | od -An -v -tx1 | tr -d ' \n'; }

# The containers' own users read what is mounted into them. The launcher's container runs tasks as
# somebody else: there only its root may read.
keep() {
  local file=$1 mode=$2 value=$3
  if [[ ! -s $file ]]; then
    (umask 077 && printf '%s\n' "$value" > "$file.new")
    chmod "$mode" "$file.new"
    mv "$file.new" "$file"
  fi
}

mode_of() { if [[ $1 == launcher ]]; then echo 0400; else echo 0444; fi; }

umask 077
mkdir -p "$folder"
chmod 0700 "$folder"
(umask 022 && mkdir -p "$folder/postgres" "$folder/nats")
for user in admin "${services[@]}"; do
  keep "$folder/postgres/$user" "$(mode_of "$user")" "$(random)"
  keep "$folder/nats/$user" "$(mode_of "$user")" "$(random)"
done
for name in "${names[@]}"; do
  if [[ ! $name =~ ^[a-z][a-z0-9_]{0,30}$ ]]; then
    printf 'SHIFTWORK_MONITORING_USERS: %q is no name; write [a-z][a-z0-9_]{0,30}\n' "$name" >&2
    exit 2
  fi
  keep "$folder/nats/monitoring_$name" 0444 "$(random)"
done
keep "$folder/admin-token" 0444 "$(random)"
keep "$folder/run-token-key" 0444 "$(random)"
keep "$folder/launcher-run-token-key" 0400 "$(< "$folder/run-token-key")"
for user in admin "${services[@]}" "${names[@]/#/monitoring_}"; do
  printf 'NATS_PASSWORD_%s=%s\n' "${user^^}" "$(< "$folder/nats/$user")"
done > "$folder/nats.env"
printf 'Secrets are in %s; the first administrator has the token in admin-token.\n' "$folder"
