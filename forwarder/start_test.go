package forwarder_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/testkit"
	"github.com/watermill-once/once/schema"
)

// A forwarder that cannot reach the database when it starts says so once, and begins
// when the database can be reached.
func TestUnreachableDatabaseAtTheStartIsLogged(t *testing.T) {
	t.Parallel()
	db := testkit.SQLite(t)
	config := schema.Config{Dialect: schema.SQLite}
	require.NoError(t, schema.Up(t.Context(), db.DB, config))
	pool, failed := testkit.FailingStep(db, 1)
	defer pool.Close()
	var logs testkit.Logs
	f, err := forwarder.New(pool, newBroker(), forwarder.Config{Schema: config, Logger: &logs})
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	<-f.Running()
	stop()
	require.NoError(t, <-ended)
	require.NotEmpty(t, failed())
	require.Equal(t, 1, logs.Count("ERROR The outbox's tables cannot be read, trying again", testkit.ErrInjected.Error()), "%q", logs.Lines())
}
