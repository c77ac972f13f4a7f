package reconcile

import (
	"cmp"
	"context"
	"slices"
	"time"
)

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

// phantoms returns the entries that the sender has certainly not sent. It also checks
// whether they are in the outbox or the dead letters.
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
