package fields_test

import (
	"errors"
	"testing"

	"github.com/watermill-once/once/internal/fields"
)

func TestEachLineBeginsWithThePackage(t *testing.T) {
	hold, lease := errors.New("Hold is -1s: negative"), errors.New("Lease is 1ms: less than 100 ms")
	err := errors.Join(fields.Refused("retry", errors.Join(hold, lease)), fields.Refused("poison", hold))
	const want = "retry: Hold is -1s: negative\nretry: Lease is 1ms: less than 100 ms\npoison: Hold is -1s: negative"
	if err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	if !errors.Is(err, hold) || !errors.Is(err, lease) {
		t.Error("errors.Is does not find the error")
	}
}
