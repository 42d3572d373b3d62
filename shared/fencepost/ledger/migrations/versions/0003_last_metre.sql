SET LOCAL lock_timeout = '2s';

-- One row per scope of a dependency, fleet-wide: until when it is closed, its breaker and its limits.
CREATE TABLE fencepost.dependencies (
    scope TEXT NOT NULL,
    state TEXT DEFAULT 'closed' NOT NULL,
    closed_until TIMESTAMP WITH TIME ZONE,
    reason TEXT,
    failures INTEGER DEFAULT 0 NOT NULL,
    failed_at TIMESTAMP WITH TIME ZONE,
    opens INTEGER DEFAULT 0 NOT NULL,
    opened_at TIMESTAMP WITH TIME ZONE,
    probes TEXT DEFAULT '{}' NOT NULL,
    flights TEXT DEFAULT '{}' NOT NULL,
    paced_at TIMESTAMP WITH TIME ZONE,
    version BIGINT DEFAULT 0 NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE,
    CONSTRAINT dependencies_pkey PRIMARY KEY (scope),
    CONSTRAINT dependencies_state_check CHECK (state IN ('closed', 'open', 'half_open'))
) WITH (fillfactor = 50);
GRANT SELECT ON fencepost.dependencies TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT, UPDATE ON fencepost.dependencies TO fencepost_worker, fencepost_operator;

-- Functions that are new or changed, as they are defined beside the schema.

