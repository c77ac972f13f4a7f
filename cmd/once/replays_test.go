package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/watermill-once/once/internal/testkit"
)

// A replay of dead letters or of sent messages that was stopped by another process
// continues where it stopped, and puts no message into the outbox twice.
func TestStoppedReplayOfTheOutboxIsResumed(t *testing.T) {
	t.Parallel()
	// At one message a second, the replay runs until it is stopped, also on a slow machine.
	ids := make([]string, 20)
	for n := range ids {
		ids[n] = fmt.Sprint("m", n)
	}
	for source, topic := range map[string]string{"dead": "bad", "sent": "good"} {
		t.Run(source, func(t *testing.T) {
			if source != "sent" {
				testkit.Long(t) // it waits for 20 messages, one a second
			}
			t.Parallel()
			testkit.EachDatabase(t, func(t *testing.T, db testkit.Database) {
				if db.Dialect != "postgres" {
					testkit.Long(t)
				}
				s := newShell(t, db)
				commit(s, db, topic, ids...)
				forwarded(s, db)
				ended := make(chan result, 1)
				go func() { ended <- s.run(t.Context(), source, "replay", "--topic", topic, "--rate", "1", "--yes") }()
				testkit.Eventually(t, time.Minute, "the replay has begun", func() bool {
					list := object[replaysJSON](s, exitDone, "replays", "list").Replays
					return len(list) == 1 && list[0].Replayed > 0
				})
				s.says(s.once(exitFailed, "replays", "resume", "1"), "a replay is running: 1")
				s.says(s.once(exitDone, "replays", "stop", "1", "--why", "lunch"), "Replay 1 is stopped: ")
				got := <-ended
				if got.code != exitFailed || !strings.Contains(got.stderr, "by ann: lunch; resume it with: once replays resume 1") {
					t.Fatalf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
				}
				before := waiting(s)
				if before == 0 || before == len(ids) {
					t.Fatalf("%d messages were replayed before the stop", before)
				}
				s.says(s.once(exitFound, "replays", "watch", "1"), "Replay 1 stopped", "once replays resume 1")

				resumed := object[changeJSON](s, exitDone, "replays", "resume", "1", "--why", "after lunch")
				if resumed.Changed != len(ids) || resumed.Matched != len(ids) || resumed.ReplayID != 1 {
					t.Errorf("resume %+v", resumed)
				}
				var n, distinct int
				err := db.QueryRowContext(t.Context(), `SELECT COUNT(*), COUNT(DISTINCT message_id) FROM once_outbox`).Scan(&n, &distinct)
				if err != nil || n != len(ids) || distinct != len(ids) {
					t.Errorf("%d rows of %d messages in the outbox, %v", n, distinct, err)
				}
				s.says(s.once(exitDone, "audit", "--action", "resume"), "ann", "after lunch")
				s.says(s.once(exitFailed, "replays", "resume", "1"), "the replay has finished")
			})
		})
	}
}
