CREATE TABLE report (
    job_key TEXT NOT NULL,
    schema_version INTEGER NOT NULL,
    frozen_ms BIGINT NOT NULL,
    verdict TEXT NOT NULL,
    lost_gpu_hours DOUBLE PRECISION NOT NULL,
    rules TEXT NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (job_key)
);

CREATE VIEW gpu_minute AS
SELECT
    to_timestamp(minute.minute::bigint * 60) AS time,
    minute.minute::bigint * 60 AS unix_seconds,
    source.node AS node,
    source.device AS device,
    series.metric AS metric,
    series.origin AS origin,
    minute.mean AS mean,
    minute.min AS min,
    minute.max AS max,
    minute.count AS count
FROM minute
JOIN series ON series.id = minute.series_id
JOIN source ON source.id = series.source_id;

CREATE VIEW job_summary AS
SELECT
    job.key AS job_key,
    job.id AS job_id,
    job.cluster AS cluster,
    job.user_name AS user_name,
    job.name AS name,
    job.state AS state,
    job.exit_code AS exit_code,
    to_timestamp(job.start_ms / 1000.0) AS start_time,
    to_timestamp(job.end_ms / 1000.0) AS end_time,
    given.nodes AS nodes,
    given.gpus AS gpus,
    given.gpu_hours AS gpu_hours,
    (
        SELECT sum(minute.mean * minute.count) / sum(minute.count)
        FROM allocation
        JOIN series ON series.source_id = allocation.source_id AND series.metric = 'sm_active_ratio'
        JOIN minute
            ON minute.series_id = series.id
            AND minute.minute >= allocation.start_ms / 60000
            AND minute.minute::bigint * 60000 < coalesce(allocation.end_ms, 9007199254740991)
        WHERE allocation.job_key = job.key
        GROUP BY series.origin
        ORDER BY sum(minute.count) DESC
        LIMIT 1
    ) AS sm_active_ratio,
    report.verdict AS verdict,
    report.lost_gpu_hours AS lost_gpu_hours
FROM job
LEFT JOIN (
    SELECT
        allocation.job_key AS job_key,
        count(DISTINCT source.node) AS nodes,
        count(DISTINCT CASE WHEN source.device <> 'node' AND source.device NOT LIKE 'job:%' THEN source.id END) AS gpus,
        sum(
            CASE WHEN source.device <> 'node' AND source.device NOT LIKE 'job:%' THEN
                (coalesce(allocation.end_ms, (extract(epoch FROM now()) * 1000)::bigint) - allocation.start_ms) / 3600000.0::double precision
            END
        ) AS gpu_hours
    FROM allocation
    JOIN source ON source.id = allocation.source_id
    GROUP BY allocation.job_key
) AS given ON given.job_key = job.key
LEFT JOIN report ON report.job_key = job.key;
