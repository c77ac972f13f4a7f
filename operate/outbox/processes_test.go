package outbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/forwarder"
	"github.com/watermill-once/once/internal/test/kit"
	"github.com/watermill-once/once/operate"
	"github.com/watermill-once/once/operate/dead"
	outboxops "github.com/watermill-once/once/operate/outbox"
	"github.com/watermill-once/once/outbox"
)

// Environment variables that make the test binary a forwarder.
const (
	processDSN  = "ONCE_TEST_PENDING_DSN"
	processFile = "ONCE_TEST_PENDING_FILE"

	processLease = time.Second
)

func TestMain(m *testing.M) {
	if os.Getenv(processDSN) == "" {
		kit.MainWithTables(m)
	}
	if err := beForwarder(os.Getenv(processDSN), os.Getenv(processFile)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func beForwarder(dsn, file string) error {
	db, err := sql.Open("postgres", dsn)
	if err != nil {
		return err
	}
	sent, err := os.OpenFile(file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f, err := forwarder.New(db, &moody{file: sent, tried: map[string]bool{}}, forwarder.Config{
		Lease: processLease, Workers: 4, PollMax: 20 * time.Millisecond, MaxAttempts: 1000, Logger: watermill.NopLogger{},
		Backoff: func(int) time.Duration { return 20 * time.Second },
	})
	if err != nil {
		return err
	}
	return f.Run(context.Background())
}

// moody writes the time and the id of each message to a file. It refuses every second
// message when it gets the message for the first time.
type moody struct {
	mu    sync.Mutex
	file  *os.File
	tried map[string]bool
}

func (p *moody) Publish(_ string, msgs ...*message.Message) error {
	<-time.After(10 * time.Millisecond) // so that messages wait in memory
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range msgs {
		if n, _ := strconv.Atoi(m.UUID); n%2 == 1 && !p.tried[m.UUID] {
			p.tried[m.UUID] = true
			return refusal{fmt.Errorf("message %s is refused once", m.UUID)}
		}
		if _, err := fmt.Fprintf(p.file, "%d %s\n", time.Now().UnixMicro(), m.UUID); err != nil {
			return err
		}
	}
	return nil
}

func (p *moody) Close() error { return nil }

func startForwarder(t *testing.T, dsn, file string) (kill func()) {
	t.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), processDSN+"="+dsn, processFile+"="+file)
	command.Stderr = os.Stderr
	ended := kit.StartChild(t, command)
	return func() {
		_ = command.Process.Kill()
		<-ended
	}
}

// sentIn returns the time of the last publish of each message in the file.
func sentIn(t *testing.T, file string) map[string]time.Time {
	t.Helper()
	f, err := os.Open(file)
	kit.OK(t, err)
	defer f.Close()
	sent := map[string]time.Time{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		micros, id, ok := strings.Cut(lines.Text(), " ")
		at, err := strconv.ParseInt(micros, 10, 64)
		if !ok || err != nil {
			t.Fatalf("line %q", lines.Text())
		}
		sent[id] = time.UnixMicro(at)
	}
	return sent
}

// Messages are written, refused, retried and cancelled, while the forwarder is killed
// again and again. No message may be lost, and no message may be sent after it was
// cancelled without Force. A dead letter whose field Unknown is false must never have
// been sent.
func TestCancelWhileForwardersAreKilled(t *testing.T) {
	kit.Long(t)
	b := newBench(t, kit.Postgres(t))
	file := t.TempDir() + "/sent"
	cancelledAt := map[string]time.Time{} // the cancel was committed before this time
	written, cancelled := 0, 0
	round := func() {
		var msgs []*message.Message
		for range 60 {
			key := ""
			if written%3 == 0 {
				key = fmt.Sprint("key", written%30)
			}
			m := msg(strconv.Itoa(written), key)
			if key == "" && written%7 == 0 { // some of these messages become due while the test cancels
				outbox.SetDueAt(m, time.Now().Add(time.Duration(written%9)*time.Second))
			}
			msgs, written = append(msgs, m), written+1
		}
		b.publish("t", msgs...)
		report, err := b.messages.CancelMatching(t.Context(), ann, operate.Filter{All: true, Limit: 30}, operate.Plan{})
		kit.OK(t, err)
		cancelled += report.Changed
		for id := range b.dead() {
			if _, known := cancelledAt[id]; !known {
				cancelledAt[id] = time.Now()
			}
		}
		_, err = b.messages.RetryMatching(t.Context(), ann, operate.Filter{State: outboxops.BackingOff, Limit: 20}, operate.Plan{})
		kit.OK(t, err)
	}
	rounds := func(d time.Duration) {
		for deadline := time.Now().Add(d); time.Now().Before(deadline); {
			round()
		}
	}
	for range 4 {
		kill := startForwarder(t, b.DSN, file)
		rounds(1500 * time.Millisecond)
		kill()
		rounds(processLease + 500*time.Millisecond) // the slots become free
	}
	startForwarder(t, b.DSN, file)
	kit.Falls(t, 30*time.Second, "messages wait", func() int {
		for _, state := range []string{outboxops.BackingOff, outboxops.Delayed} {
			kit.OK(t, kit.Err(b.messages.RetryMatching(t.Context(), ann, operate.Filter{State: state}, operate.Plan{})))
		}
		return b.Number(`SELECT COUNT(*) FROM once_outbox`)
	})

	sent, certain, both := sentIn(t, file), 0, 0
	letters := b.dead()
	for n := range written {
		id := strconv.Itoa(n)
		at, wasSent := sent[id]
		letter, isDead := letters[id]
		if !wasSent && !isDead {
			t.Fatalf("message %s is lost", id)
		}
		if !isDead {
			continue
		}
		if letter.Reason != dead.ReasonCancelled {
			t.Fatalf("letter.Reason is %q, want %q", letter.Reason, dead.ReasonCancelled)
		}
		if wasSent {
			both++
			if !letter.Unknown {
				t.Fatalf("message %s was sent, and Unknown is false", id)
			}
			if !at.Before(cancelledAt[id]) {
				t.Fatalf("message %s was sent after it was cancelled", id)
			}
		}
		if !letter.Unknown {
			certain++
		}
	}
	t.Logf("%d written, %d sent, %d cancelled (%d never due), %d of them were sent before", written, len(sent), cancelled, certain, both)
	if cancelled != len(letters) {
		t.Fatalf("cancelled is %d, want %d", cancelled, len(letters))
	}
	if certain == 0 {
		t.Fatal("certain is 0")
	}
	if cancelled-certain == 0 {
		t.Fatal("cancelled-certain is 0")
	}
	if len(sent) == 0 {
		t.Fatal("sent is empty")
	}
	b.WantNumber(0, `SELECT COUNT(*) FROM once_blocked_keys`)
}
