CREATE TABLE allocation (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    job_key TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT,
    known_from TEXT NOT NULL,
    confidence DOUBLE NOT NULL,
    UNIQUE (job_key, source_id, start_ms)
);

CREATE TABLE chunk (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    source_id INTEGER NOT NULL,
    t0 BIGINT NOT NULL,
    epoch BIGINT NOT NULL,
    first_ms BIGINT NOT NULL,
    last_ms BIGINT NOT NULL,
    n INTEGER NOT NULL,
    layout_id TEXT NOT NULL,
    codec SMALLINT NOT NULL,
    crc BIGINT NOT NULL,
    data BLOB NOT NULL,
    UNIQUE (source_id, t0, epoch)
);

CREATE TABLE device (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    source_id INTEGER NOT NULL,
    since_ms BIGINT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (source_id, since_ms)
);

CREATE TABLE event (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    source_id INTEGER NOT NULL,
    time_ms BIGINT NOT NULL,
    kind TEXT NOT NULL,
    code BIGINT NOT NULL,
    ordinal INTEGER NOT NULL,
    detail TEXT NOT NULL,
    UNIQUE (source_id, time_ms, kind, code, ordinal)
);

CREATE INDEX event_time ON event (time_ms);

CREATE TABLE finding (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    rule TEXT NOT NULL,
    source_id INTEGER NOT NULL,
    start_ms BIGINT NOT NULL,
    end_ms BIGINT,
    severity TEXT NOT NULL,
    job_key TEXT NOT NULL,
    body TEXT NOT NULL,
    UNIQUE (rule, source_id, start_ms)
);

CREATE INDEX finding_start ON finding (start_ms);

CREATE TABLE head (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    node TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    t0 BIGINT NOT NULL,
    t1 BIGINT NOT NULL,
    data BLOB NOT NULL
);

CREATE INDEX head_t0 ON head (t0);

CREATE TABLE job (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    "key" TEXT NOT NULL,
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
    UNIQUE ("key")
);

CREATE INDEX job_id ON job (id);

CREATE INDEX job_start ON job (start_ms);

CREATE TABLE layout (
    id TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (id)
);

CREATE TABLE meta (
    "key" TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY ("key")
);

CREATE TABLE minute (
    minute INTEGER NOT NULL,
    series_id INTEGER NOT NULL,
    mean DOUBLE NOT NULL,
    min DOUBLE NOT NULL,
    max DOUBLE NOT NULL,
    count INTEGER NOT NULL,
    PRIMARY KEY (minute, series_id)
)
 WITHOUT ROWID;

CREATE TABLE series (
    id INTEGER NOT NULL,
    source_id INTEGER NOT NULL,
    metric TEXT NOT NULL,
    origin TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (source_id, metric, origin)
);

CREATE TABLE source (
    id INTEGER NOT NULL,
    node TEXT NOT NULL,
    device TEXT NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (node, device)
);
