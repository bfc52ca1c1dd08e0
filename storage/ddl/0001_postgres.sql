CREATE TABLE allocation (
    job_key TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT,
    known_from TEXT NOT NULL,
    confidence DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (job_key, source_id, start_ms)
);

CREATE TABLE chunk (
    source_id INTEGER NOT NULL,
    t0 BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    n INTEGER NOT NULL,
    layout_id TEXT NOT NULL,
    codec SMALLINT NOT NULL,
    crc BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (source_id, t0, epoch)
)
 PARTITION BY RANGE (t0);

CREATE TABLE device (
    source_id INTEGER NOT NULL,
    since_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (source_id, since_ms)
);

CREATE TABLE event (
    source_id INTEGER NOT NULL,
    time_ms BIGINT NOT NULL,
    kind TEXT NOT NULL,
    code BIGINT NOT NULL,
    ordinal INTEGER NOT NULL,
    detail TEXT NOT NULL,
    PRIMARY KEY (source_id, time_ms, kind, code, ordinal)
);

CREATE INDEX event_time ON event (time_ms);

CREATE TABLE finding (
    rule TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT,
    severity TEXT NOT NULL,
    job_key TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (rule, source_id, start_ms)
);

CREATE INDEX finding_start ON finding (start_ms);

CREATE TABLE head (
    seq BIGINT NOT NULL,
    node TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    t0 BIGINT NOT NULL,
    t1 BIGINT NOT NULL,
    data BYTEA NOT NULL,
    PRIMARY KEY (node, epoch, seq)
);

CREATE INDEX head_t0 ON head (t0);

CREATE TABLE job (
    key TEXT NOT NULL,
    id TEXT NOT NULL,
    cluster TEXT NOT NULL,
    raw_id TEXT NOT NULL,
    name TEXT NOT NULL,
    user_name TEXT NOT NULL,
    state TEXT NOT NULL,
    tags TEXT NOT NULL,
    meta TEXT NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT,
    exit_code INTEGER,
    restart INTEGER NOT NULL,
    PRIMARY KEY (key)
);

CREATE INDEX job_id ON job (id);

CREATE INDEX job_start ON job (start_ms);

CREATE TABLE layout (
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE meta (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (key)
);

CREATE TABLE minute (
    minute INTEGER NOT NULL,
    series_id INTEGER NOT NULL,
    mean DOUBLE PRECISION NOT NULL,
    min DOUBLE PRECISION NOT NULL,
    max DOUBLE PRECISION NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (minute, series_id)
)
 PARTITION BY RANGE (minute);

CREATE TABLE series (
    id SERIAL NOT NULL,
    source_id INTEGER NOT NULL,
    metric TEXT NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (source_id, metric, origin)
);

CREATE TABLE source (
    id SERIAL NOT NULL,
    node TEXT NOT NULL,
    device TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (node, device)
);

ALTER TABLE chunk ALTER COLUMN data SET STORAGE EXTERNAL;

ALTER TABLE head ALTER COLUMN data SET STORAGE EXTERNAL;

-- Runs with the owner's rights, so that agents need no more than INSERT. Parts are named by their lower bound.
CREATE FUNCTION gpudiag_partition(parent text, low bigint, high bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
    part text := parent || '_' || low;
BEGIN
    IF parent NOT IN ('chunk', 'minute') THEN
        RAISE EXCEPTION 'gpudiag_partition: unknown table %', parent;
    END IF;
    IF to_regclass(quote_ident(part)) IS NULL THEN
        PERFORM pg_advisory_xact_lock(hashtext('gpudiag_partition'));
        EXECUTE format('CREATE TABLE IF NOT EXISTS %I PARTITION OF %I FOR VALUES FROM (%s) TO (%s)', part, parent, low, high);
    END IF;
END $$;
