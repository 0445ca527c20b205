#!/usr/bin/env bash
# Starts PostgreSQL in a container; on the first start makes the cluster. It takes what the public
# image takes, as far as charts, compose files and testcontainers use it:
#   POSTGRES_PASSWORD or POSTGRES_PASSWORD_FILE (needed once), POSTGRES_USER (postgres),
#   POSTGRES_DB (the user's name), POSTGRES_INITDB_ARGS, POSTGRES_HOST_AUTH_METHOD (scram-sha-256),
#   PGDATA, and *.sql and *.sh in /docker-entrypoint-initdb.d.
# Arguments that begin with a dash are the server's; another program is run as it is.
set -Eeuo pipefail

fail() {
  printf 'postgres-entrypoint: %s\n' "$*" >&2
  exit 1
}

# The value of a variable or of the file that VARIABLE_FILE names.
value_of() {
  local variable=$1 file="${1}_FILE"
  if [[ -n ${!variable:-} && -n ${!file:-} ]]; then
    fail "$variable and $file are both set; give one"
  elif [[ -n ${!file:-} ]]; then
    [[ -r ${!file} ]] || fail "$file=${!file} cannot be read by uid $(id -u)"
    printf '%s' "$(< "${!file}")"
  else
    printf '%s' "${!variable:-}"
  fi
}

make_cluster() {
  local home=$1 user=$2 method=${POSTGRES_HOST_AUTH_METHOD:-scram-sha-256} password arguments
  password=$(value_of POSTGRES_PASSWORD)
  if [[ -z $password && $method != trust ]]; then
    fail 'the first start needs a password: set POSTGRES_PASSWORD_FILE or POSTGRES_PASSWORD'
  fi
  read -ra arguments <<< "${POSTGRES_INITDB_ARGS:-}"
  # By a file that nobody else can open, so that no list of processes shows the password.
  initdb --pgdata="$home" --username="$user" --pwfile=<(printf '%s\n' "${password:-unused}") \
    --encoding=UTF8 --auth-local=trust --auth-host="$method" "${arguments[@]}" > /dev/null
  printf 'host all all all %s\n' "$method" >> "$home/pg_hba.conf"
}

# The database and the scripts, on a server that nobody else reaches: its socket is in its folder.
fill_cluster() {
  local home=$1 user=$2 database=$3 script words=$1/first-start.log
  export PGHOST=$home PGUSER=$user PGDATABASE=$database
  pg_ctl --pgdata="$home" --wait --silent --log="$words" \
    --options="-c listen_addresses='' -c unix_socket_directories='$home'" start \
    || fail "the new cluster does not start: $(tail -n 5 "$words")"
  if [[ $database != postgres ]]; then
    psql --no-psqlrc --quiet --dbname=postgres --set=ON_ERROR_STOP=1 --set=name="$database" \
      <<< 'CREATE DATABASE :"name";'
  fi
  for script in /docker-entrypoint-initdb.d/*; do
    case $script in
      *.sql) psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --file="$script" ;;
      *.sh) POSTGRES_USER=$user POSTGRES_DB=$database bash "$script" ;;
    esac
  done
  pg_ctl --pgdata="$home" --wait --silent --mode=fast stop
  rm -f "$words"
  unset PGHOST PGUSER PGDATABASE
}

main() {
  local home=$PGDATA user=${POSTGRES_USER:-postgres}
  if [[ ${1:-} == -* ]]; then
    set -- postgres "$@"
  fi
  if [[ ${1:-postgres} != postgres ]]; then
    exec "$@"
  fi
  mkdir -p "$home" 2> /dev/null && [[ -w $home ]] \
    || fail "PGDATA=$home cannot be written by uid $(id -u); give the volume to 999 (fsGroup: 999)"
  if [[ ! -s $home/PG_VERSION ]]; then
    # Made beside its place and moved when done: a start that was cut short leaves no half cluster.
    local half=$home/.making
    rm -rf "$half"
    make_cluster "$half" "$user"
    fill_cluster "$half" "$user" "${POSTGRES_DB:-$user}"
    chmod 0700 "$home" 2> /dev/null || true
    # The mark of a whole cluster comes last.
    find "$half" -mindepth 1 -maxdepth 1 ! -name PG_VERSION -exec mv -t "$home" {} +
    mv "$half/PG_VERSION" "$home/"
    rmdir "$half"
  fi
  unset POSTGRES_PASSWORD POSTGRES_PASSWORD_FILE
  # On a read-only file system without a folder of its own there, the local socket is in /tmp.
  local sockets=/var/run/postgresql
  [[ -w $sockets ]] || sockets=/tmp
  exec postgres -c listen_addresses='*' -c unix_socket_directories="$sockets" "${@:2}"
}

main "$@"
