package main

import (
	"context"
	"fmt"
	"time"

	"github.com/watermill-once/once/deadletter"
	"github.com/watermill-once/once/journey"
	"github.com/watermill-once/once/poison"
)

// newSearches returns searches for the few rows that fillEntries marks.
func newSearches(quarantine *poison.Quarantine, letters *deadletter.Letters, log *deadletter.SentLog) []look {
	entries := func(f poison.Filter) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := quarantine.List(ctx, f)
			return expect(len(found.Entries), marked, err)
		}
	}
	dead := func(f deadletter.Filter) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := letters.List(ctx, f)
			return expect(len(found.Letters), marked, err)
		}
	}
	sent := func(f deadletter.Filter, want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			page, err := log.List(ctx, f)
			return expect(len(page.Messages), want, err)
		}
	}
	future := time.Now().Add(aYear / 2)
	return []look{
		{"quarantine-tenant", "the entries of a tenant with few of them", entries(poison.Filter{Tenant: mark})},
		{"quarantine-event", "the entries of an event type with few of them", entries(poison.Filter{EventType: mark})},
		{"quarantine-time", "the entries that failed after a time, with few of them", entries(poison.Filter{FailedAfter: future})},
		{"quarantine-tenant-groups", "the groups of that tenant", func(ctx context.Context) error {
			listed, err := quarantine.Groups(ctx, poison.Filter{Tenant: mark})
			return expect(len(listed.Groups), 3, err)
		}},
		{"quarantine-type", "the entries of an aggregate type with few of them", entries(poison.Filter{AggregateType: mark})},
		{"quarantine-error", "the entries of an error type with few of them", entries(poison.Filter{ErrorType: mark})},
		{"dead-type", "the dead letters of an aggregate type with few of them", dead(deadletter.Filter{AggregateType: mark})},
		{"sent-none", "a page of the sent log for a tenant without messages", sent(deadletter.Filter{Tenant: "none"}, 0)},
		{"sent-aggregate", "the sent messages of an aggregate", sent(deadletter.Filter{AggregateID: mark}, marked)},
		{
			"sent-time", "the sent messages of a tenant and the last hour",
			sent(deadletter.Filter{Tenant: mark, SentAfter: time.Now().Add(-time.Hour)}, marked),
		},
		{"dead-tenant", "the dead letters of a tenant with few of them", dead(deadletter.Filter{Tenant: mark})},
		{"dead-group", "the dead letters of a group with few of them", dead(deadletter.Filter{Fingerprint: "exhausted: " + mark})},
		{"dead-time", "the dead letters of a time with few of them", dead(deadletter.Filter{FailedAfter: future})},
	}
}

// newWideSearches returns searches in which each condition matches very many rows.
func newWideSearches(quarantine *poison.Quarantine, letters *deadletter.Letters) []look {
	entries := poison.Filter{Fingerprint: "cfcd208495d565ef66e7dff9f98764da", EventType: "event-1"} // the MD5 sum of cause 0
	return []look{
		{
			"quarantine-two", "the entries of a group with half of them and an event type with a tenth, which no entry has both",
			func(ctx context.Context) error {
				page, err := quarantine.List(ctx, entries)
				return expect(len(page.Entries), 0, err)
			},
		},
		{"quarantine-two-groups", "the groups of these two", func(ctx context.Context) error {
			page, err := quarantine.Groups(ctx, entries)
			return expect(len(page.Groups), 0, err)
		}},
		{
			"dead-two", "the dead letters of a group with half of them and an aggregate type with a 20th, which no letter has both",
			func(ctx context.Context) error {
				page, err := letters.List(ctx, deadletter.Filter{Fingerprint: "exhausted: cause 0", AggregateType: "type-1"})
				return expect(len(page.Letters), 0, err)
			},
		},
		{"dead-since", "the dead letters since a time before all of them", func(ctx context.Context) error {
			page, err := letters.List(ctx, deadletter.Filter{FailedAfter: time.Now().Add(-aYear)})
			return expect(len(page.Letters), 100, err)
		}},
		{"dead-count", "a part of the count of the dead letters", func(ctx context.Context) error {
			_, err := letters.Count(ctx, deadletter.Filter{})
			return err
		}},
	}
}

// traces returns searches for messages in all tables.
func (o *operator) traces(entries int) []look {
	find := func(q journey.Query, want int) func(ctx context.Context) error {
		return func(ctx context.Context) error {
			found, err := o.journeys.Find(ctx, q)
			return expect(len(found.Messages), want, err)
		}
	}
	first := fmt.Sprintf("sent-%d", entries-marked)
	return []look{
		{"trace", "a trace of a message in quarantine", find(journey.Query{MessageID: mark}, 1)},
		{
			"trace-causes", "a trace of a sent message and of the five that it caused, one by the other",
			find(journey.Query{MessageID: first, Causes: true}, 1+marked),
		},
		{"trace-popular", "a trace of a message that caused half of the sent log", find(journey.Query{MessageID: popular, Causes: true}, 100)},
		{"trace-tenant", "a trace of a tenant", find(journey.Query{Tenant: mark}, 3*marked)},
		{"trace-aggregate", "a trace of an aggregate", find(journey.Query{AggregateID: mark}, marked)},
	}
}
