package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/watermill-once/once/operate/status"
)

func (d database) seconds(column string) string {
	if d.sqlite() {
		return `CAST(unixepoch('subsec') - ` + column + ` / 1000.0 AS INTEGER)`
	}
	return `CAST(EXTRACT(EPOCH FROM now() - ` + column + `) AS bigint)`
}

func (d *doctor) status(ctx context.Context) (status.Status, error) {
	reader, err := status.New(d.db.DB, d.db.tables)
	if err != nil {
		return status.Status{}, err
	}
	return reader.Read(ctx)
}

func (d *doctor) forwarders(ctx context.Context) ([]finding, error) {
	now, err := d.status(ctx)
	if err != nil {
		return nil, err
	}
	if found := twoDestinations(now.Forwarders); found != nil || len(now.Forwarders) > 0 {
		return found, nil
	}
	if now.Outbox.Pending.N == 0 {
		return nil, nil
	}
	return []finding{{
		What: fmt.Sprintf("No forwarder runs, and %s in the outbox.", atMost(now.Outbox.Pending, "message waits", "messages wait")),
		Why:  "Nobody sends these messages. The outbox grows with every commit.",
		Do:   "Start a forwarder: once forward, or the service that has one. If one runs, it uses another --schema or --prefix.",
	}}, nil
}

func twoDestinations(instances []status.Forwarder) []finding {
	seen := map[string]string{}
	for _, i := range instances {
		seen[i.Destination] = i.Owner
	}
	if len(seen) < 2 {
		return nil
	}
	var all []string
	for _, destination := range sortedKeys(seen) {
		all = append(all, fmt.Sprintf("%q sends to %q", seen[destination], destination))
	}
	return []finding{{
		What: "Forwarders of one outbox have different destinations: " + strings.Join(all, ", ") + ".",
		Why:  "Each broker gets a part of the messages, and the order of keys is lost.",
		Do:   "Stop one of them, or give all the same broker. See docs/operating-the-forwarder.md.",
	}}
}

// An operator may have forgotten a pause that is older than longPause.
const longPause = time.Hour

func (d *doctor) pauses(ctx context.Context) (found []finding, err error) {
	now, err := d.status(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range now.Outbox.Pauses {
		if paused := now.At.Sub(p.Since); paused >= longPause {
			flag := "--topic " + p.Topic
			if p.Tenant != "" {
				flag = "--tenant " + p.Tenant
			}
			found = append(found, finding{
				What: fmt.Sprintf("The %s has been paused for %s, by %s: %s", scopeText(p.Topic, p.Tenant), age(paused), p.Actor, p.Why),
				Why:  "Its messages stay in the outbox, which grows, and nothing is sent. The lag includes them.",
				Do:   "If the reason is gone: once outbox resume " + flag,
			})
		}
	}
	for _, p := range now.PausedConsumers {
		if paused := now.At.Sub(p.Since); paused >= longPause {
			found = append(found, finding{
				What: fmt.Sprintf("Consumer %q of topic %q has been paused for %s, by %s: %s", p.Consumer, p.Topic, age(paused), p.Actor, p.Why),
				Why:  "It handles no messages. They stay in the broker and in the table of parked messages.",
				Do:   fmt.Sprintf("If the reason is gone: once consumers resume %s --topic %s", p.Consumer, p.Topic),
			})
		}
	}
	return found, nil
}

func (d *doctor) deadKeys(ctx context.Context) (found []finding, err error) {
	now, err := d.status(ctx)
	if err != nil {
		return nil, err
	}
	keys := now.Outbox.DeadKeys
	for i, k := range keys {
		what := "The " + k.String() + "."
		if n := now.Outbox.BlockedByDead; i == len(keys)-1 && n.N > len(keys) {
			what += " Dead letters block " + atMost(n, "ordering key", "ordering keys") + " in all: once outbox blocked"
		}
		found = append(found, finding{
			What: what,
			Why:  "Later messages of the key stay in the outbox until a person decides. This is not a fault of the forwarder.",
			Do:   "Fix the cause. Then: " + k.Remedy(),
		})
	}
	return found, nil
}

func (d *doctor) refused(ctx context.Context) (found []finding, err error) {
	cause := `COALESCE(last_error, '')`
	if d.db.withoutContent {
		cause = `'the user may not read the error'`
	}
	rows, err := d.db.QueryContext(ctx, `
		SELECT topic, COUNT(*), MAX(`+d.db.seconds("failing_since")+`), MAX(attempts), MAX(cause)
		FROM (SELECT topic, failing_since, attempts, `+cause+` AS cause FROM `+d.db.table("outbox")+`
		      WHERE failing_since IS NOT NULL ORDER BY failing_since LIMIT 10000) AS failing
		GROUP BY topic ORDER BY COUNT(*) DESC LIMIT 20`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var topic, last string
		var n, since, attempts int
		if err := rows.Scan(&topic, &n, &since, &attempts, &last); err != nil {
			return nil, err
		}
		f := finding{
			What: fmt.Sprintf("%s, the first %s ago: %s",
				counted(n, fmt.Sprintf("message of topic %q was refused", topic), fmt.Sprintf("messages of topic %q were refused", topic)),
				age(time.Duration(since)*time.Second), last),
			Why: "The forwarder tries them again with growing pauses, and gives up on them in the end. Later messages of their keys wait.",
			Do:  "Repair what the error says. NO_ROUTE means that no queue receives the topic: declare and bind one.",
		}
		if attempts == 0 {
			f.Why = "The forwarder counts no attempts and never gives up on them, because the error concerns the whole topic. The topic waits."
			f.Do = "Repair what the error says. 403 means that the forwarder's user lacks a right, or that its token has expired."
		}
		found = append(found, f)
	}
	return found, rows.Err()
}

func (d *doctor) deadLetters(ctx context.Context) ([]finding, error) {
	now, err := d.status(ctx)
	if err != nil || now.Dead.N == 0 {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("The outbox has %s.", atMost(now.Dead, "dead letter", "dead letters")),
		Why:  "The forwarder gave up on them: no consumer gets these messages.",
		Do:   "once dead groups shows the causes. Repair them, then once dead replay or once dead discard.",
	}}, nil
}

func (d *doctor) quarantine(ctx context.Context) ([]finding, error) {
	now, err := d.status(ctx)
	if err != nil || now.Quarantine.N == 0 {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("In quarantine: %s.", atMost(now.Quarantine, "message", "messages")),
		Why:  "Their consumers gave up on them: they have no effect until somebody replays, edits or discards them.",
		Do:   "once quarantine groups shows the causes. Repair them, then once quarantine replay, edit or discard.",
	}}, nil
}

// slack is how much older than the retention a row may be: the layout by_day keeps an id for up to
// a day longer, and another day is a margin.
const slack = 48 * time.Hour

func (d *doctor) inboxRetention(ctx context.Context) ([]finding, error) {
	var oldest *int64
	err := d.db.QueryRowContext(ctx, `SELECT `+d.db.seconds("MIN(processed_at)")+` FROM `+d.db.table("inbox")).Scan(&oldest)
	if err != nil || oldest == nil || time.Duration(*oldest)*time.Second < d.retention+slack {
		return nil, err
	}
	return []finding{{
		What: fmt.Sprintf("The inbox has ids that are %s old; the retention is %s.", age(time.Duration(*oldest)*time.Second), age(d.retention)),
		Why:  "If nothing removes expired ids, the inbox grows for ever. Ids of parked and quarantined messages are kept on purpose.",
		Do: "Run a service with once.Consumer, or once sweep from cron. If a consumer remembers for longer, tell the doctor " +
			"with --retention.",
	}}, nil
}
