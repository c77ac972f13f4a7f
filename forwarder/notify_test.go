package forwarder_test

import (
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// The forwarder does not use NOTIFY. But the trigger in docs/adopting.md must work: it
// sends a notification that an application can pass on as a Hint.
func TestTrap25_NotifyIsAHintForThoseWhoWantIt(t *testing.T) {
	t.Parallel()
	db := testkit.Postgres(t)
	config := schema.Config{}
	require.NoError(t, schema.Up(t.Context(), db.DB, config))
	exec(t, db.DB, `CREATE FUNCTION once_outbox_notify() RETURNS trigger LANGUAGE plpgsql AS
		$$ BEGIN NOTIFY once_outbox; RETURN NULL; END $$`)
	exec(t, db.DB, `CREATE TRIGGER once_outbox_notify AFTER INSERT ON once_outbox
		FOR EACH STATEMENT EXECUTE FUNCTION once_outbox_notify()`)

	listener := pq.NewListener(db.DSN, time.Second, time.Minute, nil)
	defer func() { require.NoError(t, listener.Close()) }()
	require.NoError(t, listener.Listen("once_outbox"))

	put(t, db.DB, config, "t", msg("1", ""), msg("2", ""))
	select {
	case hint := <-listener.NotificationChannel():
		require.NotNil(t, hint)
		require.Equal(t, "once_outbox", hint.Channel)
	case <-time.After(patience):
		require.Fail(t, "nothing was heard of the commit")
	}
	require.Empty(t, listener.NotificationChannel(), "once a commit")
}
