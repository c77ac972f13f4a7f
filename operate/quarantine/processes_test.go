package quarantine_test

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/dedup"
	"github.com/watermill-once/once/internal/parkedrows"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/quarantine"
	"github.com/watermill-once/once/poison"
	"github.com/watermill-once/once/schema"
)

// Environment variables that make the test binary a consumer that replays its quarantine.
const (
	processDriver = "ONCE_TEST_POISON_DRIVER"
	processDSN    = "ONCE_TEST_POISON_DSN"
	processMost   = "ONCE_TEST_POISON_MOST" // number of messages after which it stops handling and waits to be killed
)

func TestMain(m *testing.M) {
	if os.Getenv(processDSN) == "" {
		kit.MainWithTables(m)
	}
	if err := beConsumer(os.Getenv(processDriver), os.Getenv(processDSN)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// beConsumer handles messages. It begins a replay or resumes the existing one, and
// returns when the replay has finished.
func beConsumer(driver, dsn string) error {
	ctx := context.Background()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		return err
	}
	db.SetMaxIdleConns(20) // with fewer idle connections, most of the time would be spent on connecting
	config := schema.Config{Dialect: schema.Dialect(driver)}
	store, err := quarantine.New(db, operate.Config{Schema: config, ReplayLease: time.Second, ReplayToAbsent: true})
	if err != nil {
		return err
	}
	middleware, err := poison.New(db, poison.Config{Schema: config})
	if err != nil {
		return err
	}
	most, err := strconv.ParseInt(os.Getenv(processMost), 10, 64)
	if err != nil {
		return err
	}
	var handled sync.Map // a message that is tried again counts once
	var count atomic.Int64
	end, err := consume(db, config, middleware, "payments", func(msg *message.Message) error {
		if _, again := handled.LoadOrStore(msg.UUID, true); !again && count.Add(1) > most {
			select {}
		}
		tx, _ := dedup.TxFromContext(msg.Context())
		_, err := tx.ExecContext(msg.Context(), `INSERT INTO effects (message_id) VALUES ('`+msg.UUID+`')`)
		return err
	})
	if err != nil {
		return err
	}
	replays, err := store.Replays(ctx, 0)
	if err != nil {
		return err
	}
	if len(replays) == 0 {
		_, err = store.ReplayMatching(ctx, act, operate.Filter{Consumer: "payments"}, operate.Plan{Canary: 10, Window: 200})
	} else {
		err = resume(ctx, store, replays[0].ID)
	}
	return errors.Join(err, end())
}

// resume resumes the replay as soon as the lease of the killed process has ended.
func resume(ctx context.Context, store *quarantine.Entries, id int64) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		_, err := store.Resume(ctx, act, id, nil)
		if !errors.Is(err, operate.ErrReplayRunning) {
			return err
		}
		<-tick.C
	}
}

// The process that replays and handles thousands of messages is killed again and
// again. Each message takes effect once, and the counts add up.
func TestTrap52KilledReplayIsResumed(t *testing.T) {
	kit.Long(t)
	t.Parallel()
	kit.EachDatabase(t, func(t *testing.T, db kit.Database) {
		b := newBench(t, db, nil)
		all := 2000
		if db.Dialect == "sqlite" {
			all = 1000 // SQLite handles one message at a time
		}
		b.importMany(all)
		kit.Exec(t, db, `CREATE TABLE effects (message_id text NOT NULL)`)
		effects := func() int { return b.Number(`SELECT COUNT(*) FROM effects`) }

		for _, enough := range []int{5, all / 4, all * 6 / 10} { // the first process is killed during the canary
			p, ended := startConsumer(t, db, enough+all/10-effects()) // the limit prevents that it finishes before it is killed
			waitFor(t, func() bool { return effects() >= enough })
			kit.OK(t, p.Process.Kill())
			if <-ended; p.ProcessState.Success() {
				t.Fatal("it had finished before it was killed")
			}
		}
		if left := b.Number(`SELECT COUNT(*) FROM once_parked WHERE state = 'quarantined'`); left == 0 || left == all {
			t.Fatalf("%d are left, which is not the middle", left)
		}
		p, ended := startConsumer(t, db, 2*all)
		if <-ended; !p.ProcessState.Success() {
			t.Fatal(p.ProcessState)
		}

		if n, ids := effects(), b.Number(`SELECT COUNT(DISTINCT message_id) FROM effects`); n != all || ids != all {
			t.Errorf("%d effects of %d messages, want %d", n, ids, all)
		}
		replays, err := b.store.Replays(t.Context(), 0)
		if err != nil || len(replays) != 1 {
			t.Fatalf("%v, %d replays", err, len(replays))
		}
		if got := counts(replays[0].Report); got != fmt.Sprintf("finished: %[1]d of %[1]d replayed, %[1]d resolved, 0 failed, 0 waiting", all) {
			t.Error(got)
		}
		for what, c := range map[string]struct {
			query string
			want  int
		}{
			"lines of audit":        {`SELECT COUNT(*) FROM once_audit WHERE action = 'replay'`, all},
			"of different entries":  {`SELECT COUNT(DISTINCT subject) FROM once_audit WHERE action = 'replay'`, all},
			"of this replay":        {fmt.Sprintf(`SELECT COUNT(*) FROM once_audit WHERE action = 'replay' AND replay_id = %d`, replays[0].ID), all},
			"resumes":               {`SELECT COUNT(*) FROM once_audit WHERE action = 'resume'`, 3},
			"entries that are done": {`SELECT COUNT(*) FROM once_parked WHERE state = 'resolved' AND replays = 1`, all},
			"entries in all":        {`SELECT COUNT(*) FROM once_parked`, all},
			"rows of the inbox":     {`SELECT COUNT(*) FROM once_inbox`, all},
		} {
			if n := b.Number(c.query); n != c.want {
				t.Errorf("%d %s, want %d", n, what, c.want)
			}
		}
	})
}

// waitFor polls rarely, because the work that it waits for takes long and needs the
// processor.
func waitFor(t *testing.T, cond func() bool) {
	t.Helper()
	deadline := time.After(4 * time.Minute)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("too few have taken effect")
		}
	}
}

func startConsumer(t *testing.T, db kit.Database, most int) (*osexec.Cmd, <-chan struct{}) {
	t.Helper()
	command := osexec.Command(os.Args[0])
	command.Env = append(os.Environ(), processDriver+"="+db.Dialect, processDSN+"="+db.DSN, processMost+"="+strconv.Itoa(most))
	command.Stderr = os.Stderr
	return command, kit.StartChild(t, command)
}

// importMany puts n messages into quarantine with one import.
func (b *bench) importMany(n int) {
	b.Helper()
	var lines strings.Builder
	for i := range n {
		msg := message.NewMessage(fmt.Sprintf("m-%05d", i), []byte("body"))
		digest := parkedrows.Digest(msg)
		sum := sha256.Sum256(digest)
		fmt.Fprintf(&lines, `{"version":1,"origin":"%x","consumer":"payments","topic":"orders.placed","message_id":%q,"reason":"failed",`+
			`"created_at":"2026-01-02T03:04:05Z","digest":%q,"envelope":%q}`+"\n", sum[:8], msg.UUID, hex.EncodeToString(digest),
			base64.StdEncoding.EncodeToString(parkedrows.Encode(msg)))
	}
	imported, _, err := b.store.Import(b.Context(), act, strings.NewReader(lines.String()))
	if err != nil || imported != n {
		b.Fatalf("%d imported, %v", imported, err)
	}
}
