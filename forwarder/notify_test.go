package forwarder_test

import (
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The forwarder does not use NOTIFY. But the trigger in docs/adopting.md must work: it
// sends a notification that an application can pass on as a Hint.
func TestTrap25_NotifyIsAHintForThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	config := schema.Config{}
	if err := schema.Up(t.Context(), db.DB, config); err != nil {
		t.Fatal(err)
	}
	exec(t, db.DB, `CREATE FUNCTION once_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN NOTIFY once_outbox; RETURN NULL; END $$`)
	exec(t, db.DB, `CREATE TRIGGER once_outbox_notify AFTER INSERT ON once_outbox
		FOR EACH STATEMENT EXECUTE FUNCTION once_outbox_notify()`)

	listener := pq.NewListener(db.DSN, time.Second, time.Minute, nil)
	defer func() {
		if err := listener.Close(); err != nil {
			t.Fatal(err)
		}
	}()
	if err := listener.Listen("once_outbox"); err != nil {
		t.Fatal(err)
	}

	put(t, db.DB, config, "t", msg("1", ""), msg("2", ""))
	select {
	case hint := <-listener.NotificationChannel():
		if hint == nil {
			t.Fatal("hint is nil")
		}
		if hint.Channel != "once_outbox" {
			t.Fatalf(`hint.Channel is %q, want "once_outbox"`, hint.Channel)
		}
	case <-time.After(patience):
		t.Fatal("nothing was heard of the commit")
	}
	if got := listener.NotificationChannel(); len(got) != 0 {
		t.Fatalf("listener.NotificationChannel is %v, want none: once a commit", got)
	}
}
