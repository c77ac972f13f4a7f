package reconcile

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// Report says how the messages of a sender and of one consumer differ. Times are
// UTC.
type Report struct {
	Consumer string   `json:"consumer"`
	Topics   []string `json:"topics"`

	// From and Until are the time that was compared: that in the message ids, or,
	// for ids without a time, that of sending and handling. Both sides have all their
	// messages since From.
	From  time.Time `json:"from"`
	Until time.Time `json:"until"`

	// AsOf is when the consumers' side was read.
	AsOf time.Time `json:"as_of"`

	// Sent and Known are the numbers of ids that the sender has sent and that the
	// consumer knows: it has handled or parked them. Hours divides them by the hour in
	// the ids. They include hours before From in which one side is not complete.
	Sent  int    `json:"sent"`
	Known int    `json:"known"`
	Hours []Hour `json:"hours,omitempty"`

	// Missing are messages that were sent, and that the consumer has neither handled
	// nor parked. MissingSince is when the first of them was sent, or zero.
	Missing      []Missing `json:"missing"`
	MissingSince time.Time `json:"missing_since,omitzero"`

	// Phantoms are messages that the consumer has, and that this sender has not sent.
	Phantoms []Phantom `json:"phantoms"`

	// SentRecently is how many messages have not arrived, but were sent again so
	// recently that they may be on their way.
	SentRecently int `json:"sent_recently"`

	// Parked are the messages of these topics that the consumer has parked, by state,
	// without those that are handled.
	Parked []Parked `json:"parked,omitempty"`

	// Pending and Dead are the messages of these topics that wait in the outbox, and
	// the dead letters.
	Pending Outstanding `json:"pending"`
	Dead    Outstanding `json:"dead"`

	// BusinessKeys reports whether the consumer has dedup.Config.Key. Some of the
	// missing messages may then have been skipped, because their key was handled under
	// another id.
	BusinessKeys bool `json:"business_keys,omitempty"`

	// Questions is the number of questions that were necessary.
	Questions int `json:"questions"`
}

// Found reports whether messages are missing, or were never sent.
func (r *Report) Found() bool { return len(r.Missing)+len(r.Phantoms) > 0 }

// Quarantined returns the number of messages in quarantine.
func (r *Report) Quarantined() int {
	for _, p := range r.Parked {
		if p.State == Quarantined {
			return p.N
		}
	}
	return 0
}

// Missing is a message that has not arrived.
type Missing struct {
	MessageID string `json:"message_id"`
	Topic     string `json:"topic"`

	// SentLogID is its ID in the sent log, which deadletter.SentLog.Replay takes.
	SentLogID int64 `json:"sent_log_id"`

	// SentAt is when it was sent first, and LastSentAt when it was sent last.
	SentAt     time.Time `json:"sent_at"`
	LastSentAt time.Time `json:"last_sent_at"`
}

// Phantom is a message that the sender has not sent.
type Phantom struct {
	MessageID string `json:"message_id"`

	// State is what the consumer has done with it, and At since when.
	State State     `json:"state"`
	At    time.Time `json:"at"`

	// Pending and Dead report whether it waits in the outbox or is a dead letter. Then
	// the broker had it although the forwarder has no confirm.
	Pending bool `json:"pending,omitempty"`
	Dead    bool `json:"dead,omitempty"`
}

// Parked are the parked messages of one state.
type Parked struct {
	State  State     `json:"state"`
	N      int       `json:"n"`
	Oldest time.Time `json:"oldest"`
}

// Outstanding are messages that were not sent. Oldest is when the first of them was
// written, or zero.
type Outstanding struct {
	N      int       `json:"n"`
	Oldest time.Time `json:"oldest,omitzero"`
}

// Hour are the messages of an hour. Start is zero for all ids without a time.
type Hour struct {
	Start time.Time `json:"start,omitzero"`
	Sent  int       `json:"sent"`
	Known int       `json:"known"`
}

// report compares the lists of a consumer with the sent log.
func (s *Sender) report(ctx context.Context, f *File, sec section, w window) (Report, error) {
	r := Report{
		Consumer: sec.Consumer, Topics: f.Topics(), From: w.from, Until: w.until, AsOf: f.data.WrittenAt,
		Missing: []Missing{}, Phantoms: []Phantom{}, Parked: sec.Parked, BusinessKeys: sec.Keys, Questions: f.data.Round,
	}
	r.count(f.data.Sent, sec.Handled)
	lists, err := decodeLists(sec.Lists)
	if err != nil {
		return r, err
	}
	found, err := settle(ctx, s, w, lists, s.config.Limit)
	if err != nil {
		return r, err
	}
	for _, m := range found.missing {
		switch {
		case m.firstAt < w.from.UnixMilli(): // the consumer may have forgotten it
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
	if r.Phantoms, err = s.phantoms(ctx, found.phantoms); err != nil {
		return r, err
	}
	if r.Pending, err = s.outstanding(ctx, `outbox`); err != nil {
		return r, err
	}
	r.Dead, err = s.outstanding(ctx, `outbox_dead`)
	return r, err
}

func (r *Report) count(sent, known hourly) {
	all := map[int64]*Hour{}
	hour := func(n int64) *Hour {
		if all[n] == nil {
			all[n] = &Hour{}
			if n >= 0 {
				all[n].Start = time.Unix(n*3600, 0).UTC()
			}
		}
		return all[n]
	}
	for h, n := range sent {
		hour(h).Sent = int(n)
		r.Sent += int(n)
	}
	for h, n := range known {
		hour(h).Known = int(n)
		r.Known += int(n)
	}
	for _, h := range all {
		r.Hours = append(r.Hours, *h)
	}
	slices.SortFunc(r.Hours, func(a, b Hour) int { return a.Start.Compare(b.Start) })
}

// phantoms returns the entries that the sender has really not sent, and looks for
// them in the outbox and the dead letters.
func (s *Sender) phantoms(ctx context.Context, entries []entry) ([]Phantom, error) {
	all := []Phantom{}
	if len(entries) == 0 {
		return all, nil
	}
	oldest, err := s.oldest(ctx) // retention may have deleted rows since the question
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		complete := oldest.Add(s.config.LongestDelay)
		if ms, ok := timeOf([]byte(e.id)); ok {
			complete = oldest
			if ms < oldest.Add(margin).UnixMilli() {
				continue
			}
		}
		if !oldest.IsZero() && e.at >= complete.UnixMilli() {
			all = append(all, Phantom{MessageID: e.id, State: e.state, At: fromMillis(e.at)})
		}
	}
	for part := range slices.Chunk(all, 1000) {
		byID := map[string]*Phantom{}
		var ids []string
		for i := range part {
			byID[part[i].MessageID] = &part[i]
			ids = append(ids, part[i].MessageID)
		}
		for table, mark := range map[string]func(*Phantom){
			"outbox":      func(p *Phantom) { p.Pending = true },
			"outbox_dead": func(p *Phantom) { p.Dead = true },
		} {
			err := s.rows(ctx, func(scan func(dest ...any) error) error {
				var id string
				err := scan(&id)
				if p := byID[id]; p != nil {
					mark(p)
				}
				return err
			}, s.dialect.SQL(`SELECT message_id FROM {`+table+`} WHERE message_id {among $1 text}`), s.dialect.Strings(ids))
			if err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// outstanding counts the messages of the topics in a table.
func (s *Sender) outstanding(ctx context.Context, table string) (Outstanding, error) {
	var o Outstanding
	var oldest *int64
	err := s.one(ctx, s.dialect.SQL(`SELECT COUNT(*), {millis MIN(created_at)} FROM {`+table+`} WHERE topic {among $1 text}`),
		[]any{s.dialect.Strings(s.config.Topics)}, &o.N, &oldest)
	if oldest != nil {
		o.Oldest = fromMillis(*oldest)
	}
	return o, err
}

// String returns "handled", "waiting", "quarantined" or "discarded".
func (s State) String() string {
	if s < states {
		return stateNames[s]
	}
	return "unknown"
}

// MarshalText returns String.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads what MarshalText returns.
func (s *State) UnmarshalText(text []byte) error {
	n := slices.Index(stateNames, string(text))
	if n < 0 {
		return errDamaged
	}
	*s = State(n)
	return nil
}

var stateNames = []string{Handled: "handled", Waiting: "waiting", Quarantined: "quarantined", Discarded: "discarded"}
