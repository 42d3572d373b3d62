SET LOCAL lock_timeout = '2s';

-- Functions that are new or changed, as they are defined beside the schema.

