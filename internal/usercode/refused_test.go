package usercode_test

import (
	"errors"
	"testing"

	"github.com/watermill-once/once/internal/usercode"
)

func TestEachLineBeginsWithThePackage(t *testing.T) {
	wait, lease := errors.New("UnackedWait is -1s: negative"), errors.New("Lease is 1ms: less than 100 ms")
	err := errors.Join(usercode.Refused("retry", errors.Join(wait, lease)), usercode.Refused("poison", wait))
	const want = "retry: UnackedWait is -1s: negative\nretry: Lease is 1ms: less than 100 ms\npoison: UnackedWait is -1s: negative"
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if !errors.Is(err, wait) || !errors.Is(err, lease) {
		t.Error("errors.Is does not find the error")
	}
}
