package deadletter

import (
	"errors"

	"github.com/watermill-once/once/operate"
)

type (
	// Act names the person who changes something, and the reason: Actor is always
	// required, Why by Discard and DiscardMatching, which lose messages.
	Act = operate.Act

	// Plan says how to replay many messages: Rate, Force and Progress. Letters and
	// SentLog return an error if Canary, Window or StopOnFailure is set, which are
	// for the quarantine of a consumer.
	Plan = operate.Plan

	// Report counts the messages of a replay: Total, Replayed and Skipped.
	Report = operate.Report

	// Group describes the dead letters with the same reason and the same error
	// text. Its Fingerprint is the reason and the error, as in "exhausted: no
	// queue".
	Group = operate.Group
)

func validate(p Plan) error {
	err := p.Validate()
	if p.Canary > 0 || p.Window > 0 || p.StopOnFailure {
		err = errors.Join(err, errors.New("Plan.Canary, Window or StopOnFailure is set: "+
			"only a consumer knows whether a replayed message failed, use Rate"))
	}
	return err
}
