package outbox_test

import (
	"errors"
	"regexp"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/outbox"
	"github.com/watermill-once/once/schema"
)

// The package-level functions are for PostgreSQL. In a transaction of SQLite, their error
// must name the wrong dialect, instead of a syntax error.
func TestPublishNamesTheWrongDialect(t *testing.T) {
	t.Parallel()
	tx, err := testkit.SQLite(t).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	err = outbox.Publisher(tx).Publish("t", message.NewMessage("1", nil))
	want := regexp.MustCompile(`^outbox: schema: check: the database is not of the kind that Dialect names: ` +
		`Dialect is "postgres", the database is SQLite [0-9.]+: set Config.Dialect to schema.SQLite$`)
	if !errors.Is(err, schema.ErrDialect) || !want.MatchString(err.Error()) {
		t.Errorf("got  %v\nwant %s", err, want)
	}
}
