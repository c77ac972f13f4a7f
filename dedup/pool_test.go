package dedup_test

import (
	"database/sql"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/testkit"
)

// By default, database/sql keeps two idle connections and closes all others. If this
// costs much time, it must be logged, because nothing else shows it.
func TestPoolThatKeepsTooFewConnectionsIsLogged(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		keep int
		said int
	}{
		{"as sql.Open makes it", 2, 1},
		{"as many as are used", 10, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			logs := &testkit.Logs{}
			b := newBench(t, testkit.SQLite(t), func(config *dedup.Config) { config.Logger = logs })
			b.SetMaxIdleConns(c.keep)
			handled := 0
			handle := func(messages int) {
				for range messages {
					handled++
					if _, err := b.inbox.Middleware(apply)(message.NewMessage(fmt.Sprint("m", handled), nil)); err != nil {
						t.Fatal(err)
					}
				}
			}
			handle(1)
			for range 2 { // the check needs two samples
				for range 20 {
					b.takeAtOnce(10)
				}
				handle(500)
			}
			const line = "INFO The connection pool closes connections as soon as they are free, and most time is spent connecting: " +
				"call SetMaxIdleConns with the number of handlers that run at the same time idle=2 max_open=0"
			if logs.CountLine(line) != c.said || logs.Count("SetMaxIdleConns") != c.said {
				t.Errorf("want %d times %q, logged %q", c.said, line, logs.Lines())
			}
		})
	}
}

// takeAtOnce takes n connections and then returns all of them.
func (b *bench) takeAtOnce(n int) {
	b.Helper()
	conns := make([]*sql.Conn, n)
	for i := range conns {
		var err error
		if conns[i], err = b.Conn(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	for _, conn := range conns {
		if err := conn.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
