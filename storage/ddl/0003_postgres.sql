-- the last minute that a series may have rows of: without it, whether it has any is known only by reading all minutes
ALTER TABLE series ADD COLUMN last_minute INTEGER NOT NULL DEFAULT 0;

UPDATE series SET last_minute = (SELECT coalesce(max(minute), 0) FROM minute);

CREATE INDEX allocation_source ON allocation (source_id);

CREATE INDEX finding_source ON finding (source_id);
