#!/bin/bash
# Run once by the image's entry point, before anything can connect: the owner of Placet's schema, and who may come through the socket.
# No password is needed and none is kept: the socket lies in a volume that only the service's container shares, there is no TCP port, and
# nobody but the server's own account (`docker compose exec postgres psql`) may be the superuser.
set -euo pipefail

psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" <<'SQL'
CREATE ROLE placet_owner LOGIN CREATEROLE;
SELECT format('GRANT CREATE ON DATABASE %I TO placet_owner', current_database()) \gexec

-- What a rollback can't undo, and functions that run text: not for facts and effects (docs/decisions.md). The next image of the same
-- major version keeps it; after `pg_upgrade` it has to be done again, and `placet doctor` says so.
SELECT format('REVOKE EXECUTE ON FUNCTION pg_catalog.%s FROM PUBLIC', oid::regprocedure) FROM pg_proc
WHERE pronamespace = 'pg_catalog'::regnamespace
  AND (proname LIKE 'pg_advisory_lock%' OR proname LIKE 'pg_try_advisory_lock%' OR proname = 'pg_notify' OR proname LIKE 'lo\_%'
       OR proname = 'pg_logical_emit_message' OR proname = 'ts_stat' OR (proname = 'ts_rewrite' AND pronargs = 2)
       OR proname LIKE '%\_to\_xml%') \gexec
SQL

cat > "$PGDATA/pg_hba.conf" <<'HBA'
# type  database  user                     method
local   all       postgres                 peer
local   placet    placet_owner,placet_app  trust
HBA
