-- Functions of a service's schema. `{schema}` is replaced by its quoted name; the file is run again by every migration.

-- Ends the transaction with this SQLSTATE unless as many rows were found as had to be: a COMMIT that is already on its way
-- cannot take effect.
CREATE OR REPLACE FUNCTION {schema}.expect(met bigint, wanted bigint, state text) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
  IF met IS DISTINCT FROM wanted THEN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = format('%s rows instead of %s', met, wanted);
  END IF;
  RETURN met;
END
$$;

-- The serial before the first of this transaction. Serials are in the order of transaction ids, so that a reader who stops
-- below bz_serial_horizon() never misses one that becomes visible later.
CREATE OR REPLACE FUNCTION {schema}.bz_serial() RETURNS bigint
LANGUAGE sql STABLE PARALLEL UNSAFE AS $$
  SELECT serial_base + (pg_current_xact_id()::text::bigint << 16) FROM {schema}.meta
$$;

-- Every serial below it is decided: visible now, or never.
CREATE OR REPLACE FUNCTION {schema}.bz_serial_horizon() RETURNS bigint
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT serial_base + (pg_snapshot_xmin(pg_current_snapshot())::text::bigint << 16) FROM {schema}.meta
$$;

-- Bytes as the protocol writes them: Crockford's base32.
CREATE OR REPLACE FUNCTION {schema}.bz_base32(data bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE
  alphabet CONSTANT text := '0123456789ABCDEFGHJKMNPQRSTVWXYZ';
  padded CONSTANT bytea := data || '\x00000000'::bytea;
  bits bigint;
  chars text := '';
BEGIN
  FOR at IN 0 .. octet_length(data) - 1 BY 5 LOOP
    bits := (get_byte(padded, at)::bigint << 32) | (get_byte(padded, at + 1)::bigint << 24)
      | (get_byte(padded, at + 2) << 16) | (get_byte(padded, at + 3) << 8) | get_byte(padded, at + 4);
    chars := chars
      || substr(alphabet, 1 + ((bits >> 35) & 31)::int, 1) || substr(alphabet, 1 + ((bits >> 30) & 31)::int, 1)
      || substr(alphabet, 1 + ((bits >> 25) & 31)::int, 1) || substr(alphabet, 1 + ((bits >> 20) & 31)::int, 1)
      || substr(alphabet, 1 + ((bits >> 15) & 31)::int, 1) || substr(alphabet, 1 + ((bits >> 10) & 31)::int, 1)
      || substr(alphabet, 1 + ((bits >> 5) & 31)::int, 1) || substr(alphabet, 1 + (bits & 31)::int, 1);
  END LOOP;
  RETURN left(chars, (octet_length(data) * 8 + 4) / 5);
END
$$;

-- An unsigned number of 64 bits, which is stored as the signed one with the same bits.
CREATE OR REPLACE FUNCTION {schema}.bz_u64(stored bigint) RETURNS numeric
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE WHEN stored < 0 THEN stored::numeric + 18446744073709551616 ELSE stored::numeric END
$$;

-- An unsigned number of 128 bits, which is stored as 16 bytes, the most significant first.
CREATE OR REPLACE FUNCTION {schema}.bz_u128(stored bytea) RETURNS numeric
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT {schema}.bz_u64(('x' || encode(substr(stored, 1, 8), 'hex'))::bit(64)::bigint) * 18446744073709551616
    + {schema}.bz_u64(('x' || encode(substr(stored, 9, 8), 'hex'))::bit(64)::bigint)
$$;

-- A moment, which is stored as microseconds since 1970. What PostgreSQL's calendar does not reach is 'infinity', as "never" is.
CREATE OR REPLACE FUNCTION {schema}.bz_time(stored bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE
    WHEN stored < 0 THEN 'infinity'::timestamptz
    -- Days and the rest apart, and without a time zone: exact to the microsecond, and no day has 23 hours.
    ELSE ('1970-01-01'::timestamp + make_interval(days => (stored / 86400000000)::int,
      secs => (stored % 86400000000)::double precision / 1000000)) AT TIME ZONE 'UTC'
  END
$$;

-- An amount, which is stored as units and hundred-millionths.
CREATE OR REPLACE FUNCTION {schema}.bz_amount(units bigint, fraction integer) RETURNS numeric
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT trim_scale({schema}.bz_u64(units) + fraction * 0.00000001)
$$;

-- Text as it was given, but for U+0000, which PostgreSQL's text cannot hold: it shows as U+2400.
CREATE OR REPLACE FUNCTION {schema}.bz_text(stored text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS $$
  SELECT CASE
    WHEN strpos(stored, E'\x01') = 0 THEN stored
    ELSE replace(replace(stored, E'\x01' || '0', U&'\2400'), E'\x01' || '1', E'\x01')
  END
$$;
