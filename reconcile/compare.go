package reconcile

import (
	"context"
	"fmt"
)

// Compare does the whole comparison in this process, without files: it passes questions
// from s to r, and answers back. It returns a report for each consumer. It compares
// only the period for which both sides have all messages.
func Compare(ctx context.Context, s *Sender, r *Receiver) ([]Report, error) {
	since, err := r.Since(ctx, s.config.Topics)
	if err != nil {
		return nil, err
	}
	next, err := s.question(ctx, later(since, s.config.Since))
	var all []Report
	for next != nil && err == nil {
		var (
			answer *File
			result Result
		)
		if answer, err = r.Answer(ctx, next); err != nil {
			break
		}
		result, err = s.Read(ctx, answer)
		all, next = append(all, result.Reports...), result.Question
	}
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	return all, nil
}
