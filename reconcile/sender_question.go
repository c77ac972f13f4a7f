package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Question begins a comparison. It returns the file to pass to [Receiver.Answer].
// Several receivers can answer the same question. Question reads the whole sent log
// since [SenderConfig].Since.
func (s *Sender) Question(ctx context.Context) (*File, error) { return s.question(ctx, s.config.Since) }

func (s *Sender) question(ctx context.Context, since time.Time) (*File, error) {
	f, err := s.begin(ctx, since)
	if err != nil {
		s.instruments.failed()
		return nil, fmt.Errorf("reconcile: question: %w", err)
	}
	return f, nil
}

func (s *Sender) begin(ctx context.Context, since time.Time) (*File, error) {
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
		begins := fmt.Sprint("the sent log begins at ", oldest.Format(time.RFC3339))
		if since.After(oldest) {
			begins = fmt.Sprintf("the comparison begins at %v (Since, or when the consumers began to remember messages)", since.Format(time.RFC3339))
		}
		return nil, fmt.Errorf("%s, and messages sent after %v are left out (Recent): %w", begins, w.until.Format(time.RFC3339), ErrNothingYet)
	}
	f := &File{fileData{
		Format: fileFormat, Version: fileVersion, Kind: question, Round: 1,
		WrittenAt: now, Topics: slices.Clone(s.config.Topics), From: w.from, Until: w.until,
	}}
	if f.data.Sender, err = s.fingerprint(ctx); err != nil {
		return nil, err
	}
	t, err := summarize(ctx, s, w)
	if err != nil {
		return nil, err
	}
	f.data.Groups, f.data.Sent = encodeTree(t), hours(t)
	return f, nil
}
