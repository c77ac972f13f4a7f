package schema_test

import (
	"errors"
	"testing"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// Trap 91. Durability names each setting that lets a crash undo a commit. If a message
// was acked after such a commit, the crash also loses the message.
func TestDurabilityNamesSettingThatLosesCommits(t *testing.T) {
	t.Parallel()
	const begins = "schema: the database may lose commits in a crash: "
	private := testkit.PrivatePostgres(t, "fsync=off")
	for name, test := range map[string]struct {
		db        testkit.Database
		statement string
		want      string // "" if no error is expected
	}{
		"PostgreSQL":        {db: testkit.Postgres(t)},
		"PostgreSQL, local": {db: testkit.Postgres(t), statement: `SET synchronous_commit = local`},
		"SQLite":            {db: testkit.SQLite(t)},
		"SQLite, FULL":      {db: testkit.SQLite(t), statement: `PRAGMA synchronous = FULL`},
		"synchronous_commit": {
			testkit.Postgres(t), `SET synchronous_commit = off`,
			"synchronous_commit is off: set it to on (ALTER ROLE ... SET synchronous_commit = on, or in the data source name)",
		},
		"unlogged": {
			testkit.Postgres(t), `ALTER TABLE once_inbox SET UNLOGGED; ALTER TABLE once_audit SET UNLOGGED`,
			"unlogged tables (once_inbox) are empty after a crash: run ALTER TABLE ... SET LOGGED",
		},
		"fsync": {
			testkit.Database{DB: openPostgres(t, private.DSN("postgres")), Dialect: "postgres"},
			"",
			"fsync is off: set it to on in postgresql.conf",
		},
		"SQLite, OFF": {
			testkit.SQLite(t), `PRAGMA synchronous = OFF`,
			"PRAGMA synchronous is OFF: set it to NORMAL or FULL in the data source name",
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.db.SetMaxOpenConns(1) // makes sure that the setting applies to all queries
			test.db.SetConnMaxIdleTime(0)
			config := configFor(test.db)
			if err := schema.Up(t.Context(), test.db.DB, config); err != nil {
				t.Fatal(err)
			}
			if _, err := test.db.ExecContext(t.Context(), test.statement); err != nil {
				t.Fatal(err)
			}
			err := schema.Durability(t.Context(), test.db.DB, config)
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "" && (!errors.Is(err, schema.ErrNotDurable) || err.Error() != begins+test.want):
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
