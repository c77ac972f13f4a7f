package forwarder_test

import (
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/watermill-once/once/schema"
)

// Two transactions that write under one key at the same time have no order to
// keep. But what commits last, and lies below what was read of its key, must
// not wait until everything is read again.

// goBy has messages without a key go by, until the reads have passed whatever
// no transaction holds up.
func goBy(t *testing.T, db *sql.DB, b *broker, name string) {
	t.Helper()
	for i := range 5 {
		id := fmt.Sprint(name, i)
		put(t, db, schema.Config{}, "t", msg(id, ""))
		eventually(t, "it is sent", func() bool { return b.has(id) })
		meanwhile(50 * time.Millisecond)
	}
}

// TestTrap01_ALateCommitBelowARefill has the key's lane full, so that refills read it.
func TestTrap01_ALateCommitBelowARefill(t *testing.T) {
	_, db := private(t) // nobody else takes transaction ids there
	reached, goOn := make(chan struct{}), make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		if d.id == "20" {
			close(reached)
			<-goOn
		}
		return nil
	})
	cfg := quick(schema.Config{})
	cfg.BatchSize, cfg.Window = 50, 20 // lanes are short
	late := open(t, db, msg("late", "key"))
	for i := range 60 {
		put(t, db, schema.Config{}, "t", msg(fmt.Sprint(i), "key"))
	}
	start(t, db, &pipelined{broker: b}, cfg)
	proceed := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(proceed)
	<-reached
	require.NoError(t, late.Commit())
	goBy(t, db, b, "free")
	proceed()
	drained(t, db)
}

// TestTrap01_ALateCommitBehindAHeadThatDies has it in memory when what waits is
// dropped.
func TestTrap01_ALateCommitBehindAHeadThatDies(t *testing.T) {
	_, db := private(t)
	reached, goOn := make(chan struct{}), make(chan struct{})
	b := newBroker().answering(func(d delivery) error {
		if d.id == "head" {
			close(reached)
			<-goOn
			return hopeless{errors.New("no")}
		}
		return nil
	})
	late := open(t, db, msg("late", "key"))
	put(t, db, schema.Config{}, "t", msg("head", "key"))
	start(t, db, &pipelined{broker: b}, quick(schema.Config{}))
	proceed := sync.OnceFunc(func() { close(goOn) })
	t.Cleanup(proceed)
	<-reached
	require.NoError(t, late.Commit())
	goBy(t, db, b, "free")
	proceed()
	drained(t, db)
}
