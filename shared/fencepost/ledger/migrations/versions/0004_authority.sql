SET LOCAL lock_timeout = '2s';

-- Which event first told a run something that nobody vouches for.
ALTER TABLE fencepost.runs ADD COLUMN tainted bigint;
-- What persons were asked and have said of a call, and which allowances it holds.
ALTER TABLE fencepost.calls ADD COLUMN approval text, ADD COLUMN reserved text;

-- Published policies; in force for a tenant is the greatest version of its own and of all tenants'.
CREATE TABLE fencepost.policies (
    version BIGINT NOT NULL,
    tenant TEXT DEFAULT '' NOT NULL,
    name TEXT NOT NULL,
    digest TEXT NOT NULL,
    bundle TEXT NOT NULL,
    published_at TIMESTAMP WITH TIME ZONE NOT NULL,
    published_by TEXT NOT NULL,
    login TEXT NOT NULL,
    note TEXT NOT NULL,
    CONSTRAINT policies_pkey PRIMARY KEY (version)
);
CREATE INDEX policies_tenant ON fencepost.policies (tenant, version);
CREATE TABLE fencepost.principals (
    tenant TEXT NOT NULL,
    principal TEXT NOT NULL,
    roles TEXT DEFAULT '[]' NOT NULL,
    disabled_at TIMESTAMP WITH TIME ZONE,
    reason TEXT,
    changed_at TIMESTAMP WITH TIME ZONE NOT NULL,
    changed_by TEXT NOT NULL,
    version BIGINT DEFAULT 1 NOT NULL,
    CONSTRAINT principals_pkey PRIMARY KEY (principal, tenant)
);
-- Who acts with whose authority, for which tools (a pattern), until when.
CREATE TABLE fencepost.delegations (
    tenant TEXT NOT NULL,
    id UUID NOT NULL,
    principal TEXT NOT NULL,
    delegate TEXT NOT NULL,
    tools TEXT DEFAULT '*' NOT NULL,
    since TIMESTAMP WITH TIME ZONE NOT NULL,
    until TIMESTAMP WITH TIME ZONE NOT NULL,
    made_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    revoked_at TIMESTAMP WITH TIME ZONE,
    revoked_by TEXT,
    CONSTRAINT delegations_pkey PRIMARY KEY (id, tenant)
);
CREATE INDEX delegations_delegate ON fencepost.delegations (delegate) WHERE revoked_at IS NULL;
CREATE TABLE fencepost.withdrawn (
    tool TEXT NOT NULL,
    version INTEGER NOT NULL,
    withdrawn_at TIMESTAMP WITH TIME ZONE NOT NULL,
    withdrawn_by TEXT NOT NULL,
    reason TEXT NOT NULL,
    CONSTRAINT withdrawn_pkey PRIMARY KEY (tool, version)
);
-- What of an allowance is used and held, per subject and window; a row that is not there is unused.
CREATE TABLE fencepost.allowances (
    tenant TEXT NOT NULL,
    key TEXT NOT NULL,
    used_count BIGINT DEFAULT 0 NOT NULL,
    used_minor BIGINT DEFAULT 0 NOT NULL,
    CONSTRAINT allowances_pkey PRIMARY KEY (key, tenant)
) WITH (fillfactor = 50);
GRANT SELECT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn,
    fencepost.allowances TO fencepost_worker, fencepost_operator, fencepost_reader;
GRANT INSERT ON fencepost.policies, fencepost.principals, fencepost.delegations, fencepost.withdrawn
    TO fencepost_operator;
GRANT UPDATE ON fencepost.principals TO fencepost_operator;
GRANT UPDATE (revoked_at, revoked_by) ON fencepost.delegations TO fencepost_operator;
GRANT DELETE ON fencepost.withdrawn TO fencepost_operator;
GRANT INSERT, UPDATE ON fencepost.allowances TO fencepost_worker, fencepost_operator;
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON fencepost.policies
    FOR EACH ROW EXECUTE FUNCTION fencepost.append_only();
CREATE TRIGGER no_truncate BEFORE TRUNCATE ON fencepost.policies
    FOR EACH STATEMENT EXECUTE FUNCTION fencepost.append_only();

-- Functions that are new or changed, as they are defined beside the schema.

