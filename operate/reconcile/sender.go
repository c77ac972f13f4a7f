package reconcile

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/watermill-once/once/internal/telemetry"
)

var (
	// ErrNoLog means that the sent log is empty, so there is nothing to compare.
	ErrNoLog = errors.New("the sent log is empty: set forwarder.Config.KeepSent in all forwarders")

	// ErrNothingYet means that there is no period to compare: both sides have all their messages
	// for none, or all are too recent.
	ErrNothingYet = errors.New("there is no time to compare yet")

	// ErrTooDifferent means that very many ids differ, or may differ: the two sides do not belong
	// together, or a shorter period must be compared.
	ErrTooDifferent = errors.New("the two sides are too different")
)

// mostIDs limits the ids of a consumer in its answer, and the missing messages of a report.
const mostIDs = 1_000_000

// Sender is the sender's side of a comparison. It reads the outbox and the sent log.
type Sender struct {
	side

	config SenderConfig
	most   int // see mostIDs

	compared, found, runs *telemetry.Counter
}

// NewSender returns a Sender for the outbox in db. If config is invalid, the error
// names each invalid field. The tables must exist, see schema.Up.
func NewSender(db *sql.DB, config SenderConfig) (*Sender, error) {
	config, err := config.prepared()
	s, err := newSide(db, config.Schema, err)
	if err != nil {
		return nil, err
	}
	meter := telemetry.NewMeter(config.MeterProvider, "reconcile")
	sender := &Sender{
		side: s, config: config, most: mostIDs,
		compared: meter.Counter("once.reconcile.compared", "{message}", "Sent messages that were compared with those of a consumer."),
		found: meter.Counter("once.reconcile.found", "{message}",
			"Messages that were sent and not handled, or handled and never sent.",
			telemetry.Label{Key: telemetry.Reason, Values: []string{"missing", "phantom"}}),
		runs: meter.Counter("once.reconcile.runs", "{run}", "Comparisons with a consumer, and steps that failed.", telemetry.Done()),
	}
	for _, counter := range []*telemetry.Counter{sender.compared, sender.found, sender.runs} {
		counter.Zero()
	}
	return sender, nil
}

// Compare compares both sides in this process, and returns a report for each consumer. It covers
// the period for which both sides still have all messages.
func Compare(ctx context.Context, s *Sender, r *Receiver) ([]Report, error) {
	since, err := r.since(ctx, s.config.Topics)
	if err != nil {
		return nil, err
	}
	file, err := s.question(ctx, later(since, s.config.Since))
	if err != nil {
		return nil, err
	}
	if file, err = r.Answer(ctx, file); err != nil {
		return nil, err
	}
	return s.Read(ctx, file)
}

// Question begins a comparison. It reads the whole sent log since [SenderConfig].Since, and returns
// the file for [Receiver.Answer]. Several receivers can answer the same question.
func (s *Sender) Question(ctx context.Context) ([]byte, error) {
	return s.question(ctx, s.config.Since)
}

func (s *Sender) question(ctx context.Context, since time.Time) (file []byte, err error) {
	defer s.ended("question", &err)
	now, err := s.now(ctx)
	if err != nil {
		return nil, err
	}
	oldest, err := s.oldest(ctx)
	if err != nil {
		return nil, err
	}
	if oldest.IsZero() {
		return nil, ErrNoLog
	}
	w := window{ceilMinute(later(oldest.Add(margin), since)), floorMinute(now.Add(-s.config.Recent))}
	if !w.from.Before(w.until) {
		return nil, fmt.Errorf("the sent log begins at %v, the comparison begins at %v "+
			"(Since, or when the consumers began to remember messages), and messages sent after %v are left out (Recent): %w",
			oldest.Format(time.RFC3339), w.from.Format(time.RFC3339), w.until.Format(time.RFC3339), ErrNothingYet)
	}
	q := questionBody{header: header{Topics: s.config.Topics, From: w.from, Until: w.until}}
	if q.Sender, err = s.fingerprint(ctx); err != nil {
		return nil, err
	}
	d := digest{}
	if err := count(ctx, s, w, d, widest, widestNoTime); err != nil {
		return nil, err
	}
	d.fold()
	q.Sent, q.Sums = d.hours(), d.encode()
	return encodeFile(questionKind, q)
}

func (s *Sender) ended(step string, err *error) {
	if *err != nil {
		s.runs.Add(1, telemetry.Failed)
	}
	wrap(step, err)
}

// Read reads the answer of a receiver, and returns a report for each of its consumers.
func (s *Sender) Read(ctx context.Context, answer []byte) (reports []Report, err error) {
	defer s.ended("read", &err)
	var a answerBody
	if err := decodeFile(answer, answerKind, &a); err != nil {
		return nil, err
	}
	mine, err := s.fingerprint(ctx)
	switch {
	case err != nil:
		return nil, err
	case a.Sender != mine:
		return nil, fmt.Errorf("it answers the question of another sender, or of other tables: %w", ErrFile)
	case !slices.Equal(a.Topics, s.config.Topics):
		return nil, fmt.Errorf("it is about the topics %q, this sender is configured for %q: %w", a.Topics, s.config.Topics, ErrFile)
	}
	for _, sec := range a.Consumers {
		r, err := s.report(ctx, a, sec)
		if err != nil {
			return nil, fmt.Errorf("consumer %q: %w", sec.Consumer, err)
		}
		reports = append(reports, r)
	}
	for i := range reports {
		s.runs.Add(1, telemetry.Ok)
		s.compared.Add(int64(reports[i].Sent), 0)
		s.found.Add(int64(len(reports[i].Missing)), 0)
		s.found.Add(int64(len(reports[i].Phantoms)), 1)
	}
	return reports, nil
}

func (s *Sender) report(ctx context.Context, a answerBody, sec section) (Report, error) {
	w := window{later(a.From, sec.From), a.Until}
	r := Report{
		Consumer: sec.Consumer, Topics: slices.Clone(a.Topics), From: w.from, Until: w.until, AsOf: a.AsOf,
		Missing: []Missing{}, Phantoms: []Phantom{}, Parked: sec.Parked, BusinessKeys: sec.Keys,
	}
	r.count(a.Sent, sec.Known)
	err := sec.check()
	if err != nil {
		return r, err
	}
	lost, unsent, err := settle(ctx, s, w, sec, s.most)
	if err != nil {
		return r, err
	}
	for _, m := range lost {
		switch {
		case m.firstAt < w.from.UnixMilli(): // the consumer may have forgotten the message
		case m.lastAt >= w.until.UnixMilli():
			r.SentRecently++
		default:
			r.Missing = append(r.Missing, Missing{string(m.id), m.topic, m.log, fromMillis(m.firstAt), fromMillis(m.lastAt)})
		}
	}
	slices.SortFunc(r.Missing, func(a, b Missing) int {
		return cmp.Or(a.SentAt.Compare(b.SentAt), cmp.Compare(a.SentLogID, b.SentLogID))
	})
	if len(r.Missing) > 0 {
		r.MissingSince = r.Missing[0].SentAt
	}
	if r.Phantoms, err = s.phantoms(ctx, unsent); err != nil {
		return r, err
	}
	if r.Pending, err = s.outstanding(ctx, `outbox`); err != nil {
		return r, err
	}
	r.Dead, err = s.outstanding(ctx, `outbox_dead`)
	return r, err
}

// settle returns the ids that only the sender has, and those that only the consumer has.
func settle(ctx context.Context, s source, w window, sec section, most int) (lost []record, unsent []entry, err error) {
	theirs := map[string]entry{}
	for _, e := range sec.IDs {
		theirs[e.ID] = e
	}
	err = collect(ctx, s, w, sec.Differ, func(k key, r *record) error {
		if _, ok := theirs[string(r.id)]; ok {
			delete(theirs, string(r.id))
			return nil
		}
		if !w.has(k, r.in) {
			return nil
		}
		if len(lost) == most {
			return fmt.Errorf("more than %d messages have not arrived: %w", most, ErrTooDifferent)
		}
		one := *r
		one.id = slices.Clone(r.id)
		lost = append(lost, one)
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	for _, e := range theirs {
		if w.has(keyOf([]byte(e.ID)), w.contains(e.At)) {
			unsent = append(unsent, e)
		}
	}
	slices.SortFunc(unsent, func(a, b entry) int { return strings.Compare(a.ID, b.ID) })
	return lost, unsent, nil
}

// phantoms returns the entries that the sender has certainly not sent, and whether they are in the
// outbox or the dead letters.
func (s *Sender) phantoms(ctx context.Context, entries []entry) ([]Phantom, error) {
	all := []Phantom{}
	if len(entries) == 0 {
		return all, nil
	}
	oldest, err := s.oldest(ctx) // read again, because retention may have deleted rows since the question
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		complete := oldest.Add(s.config.LongestDelay)
		if ms, ok := timeOf([]byte(e.ID)); ok {
			complete = oldest
			if ms < oldest.Add(margin).UnixMilli() {
				continue
			}
		}
		if !oldest.IsZero() && e.At >= complete.UnixMilli() {
			all = append(all, Phantom{MessageID: e.ID, State: e.State, At: fromMillis(e.At)})
		}
	}
	var ids []string
	byID := map[string]*Phantom{}
	for i := range all {
		ids, byID[all[i].MessageID] = append(ids, all[i].MessageID), &all[i]
	}
	mark := func(table string, mark func(p *Phantom)) error {
		return s.rows(ctx, func(scan func(dest ...any) error) error {
			var id string
			err := scan(&id)
			if p := byID[id]; p != nil {
				mark(p)
			}
			return err
		}, s.dialect.SQL(`SELECT message_id FROM {`+table+`} WHERE message_id {among $1 text}`), s.dialect.Strings(ids))
	}
	return all, errors.Join(mark(`outbox`, func(p *Phantom) { p.Pending = true }), mark(`outbox_dead`, func(p *Phantom) { p.Dead = true }))
}

func (s *Sender) outstanding(ctx context.Context, table string) (Count, error) {
	var c Count
	var oldest *int64
	err := s.one(ctx, `SELECT COUNT(*), {millis MIN(created_at)} FROM {`+table+`} WHERE topic {among $1 text}`,
		[]any{s.dialect.Strings(s.config.Topics)}, &c.N, &oldest)
	if oldest != nil {
		c.Oldest = fromMillis(*oldest)
	}
	return c, err
}

// IDs ascend with sent_at, so the oldest row has the lowest ID. An empty log has the zero time.
func (s *Sender) oldest(ctx context.Context) (time.Time, error) {
	var ms int64
	err := s.one(ctx, `SELECT {millis sent_at} FROM {outbox_sent} ORDER BY id LIMIT 1`, nil, &ms)
	if errors.Is(err, sql.ErrNoRows) {
		return time.Time{}, nil
	}
	return fromMillis(ms), err
}

// Several rows with one id are one record, with the topic of the latest row.
func (s *Sender) scan(ctx context.Context, w window, d differing, each func(*record) error) error {
	var q query
	columns, n := `message_id, MAX(`+q.in(w, `sent_at`)+`)`, 2
	if d != nil {
		columns, n = columns+`, {millis MIN(sent_at)}, {millis MAX(sent_at)}, 0, MAX(id) AS last_id`, 7
	}
	text := `SELECT ` + columns + ` FROM {outbox_sent} WHERE topic {among ` + q.arg(s.dialect.Strings(s.config.Topics)) + ` text}` +
		q.only(`message_id`, `sent_at`, w, d) + ` GROUP BY message_id`
	if d != nil {
		text = `SELECT sent.*, latest.topic FROM (` + text + `) AS sent JOIN {outbox_sent} AS latest ON latest.id = sent.last_id`
	}
	return s.records(ctx, n, each, text, q.args)
}
