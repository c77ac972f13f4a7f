package deadletter

import (
	"errors"

	"github.com/watermill-once/once/operate"
)

type (
	// Act contains the name of the person who changes something, and the reason. Actor is
	// always required. Why is required by Discard and DiscardMatching, which delete
	// messages.
	Act = operate.Act

	// Plan says how to replay many messages. Its fields Rate, Force and Progress can be
	// set. If Canary, Window or StopOnFailure is set, Letters and SentLog return an error.
	// These fields are for the quarantine of a consumer.
	Plan = operate.Plan

	// Report contains the counts of a replay: Total, Replayed and Skipped.
	Report = operate.Report

	// Group describes the dead letters that have the same reason and the same error text.
	// Its Fingerprint contains both, as in "exhausted: no queue".
	Group = operate.Group

	// GroupPage is a page of groups.
	GroupPage = operate.GroupPage

	// Count is the number of letters or sent messages in a part of the table.
	Count = operate.Count
)

func validate(p Plan) error {
	err := p.Validate()
	if p.Canary > 0 || p.Window > 0 || p.StopOnFailure {
		err = errors.Join(err, errors.New("Plan.Canary, Window or StopOnFailure is set: "+
			"only a consumer knows whether a replayed message failed, use Rate"))
	}
	return err
}
