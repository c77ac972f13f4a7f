package operate

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/internal/test/kit"
)

func TestActIsValidated(t *testing.T) {
	for _, test := range []struct {
		act        Act
		valid, let bool
	}{
		{Act{}, false, false},
		{Act{Why: "because"}, false, false},
		{Act{Actor: "ann"}, true, false},
		{Act{Actor: "ann", Why: "because"}, true, true},
	} {
		if err := test.act.Validate(); (err == nil) != test.valid {
			t.Errorf("Validate of %+v: %v", test.act, err)
		}
		if err := test.act.ValidateLoss(); (err == nil) != test.let {
			t.Errorf("ValidateLoss of %+v: %v", test.act, err)
		}
	}
}

func TestPlanIsValidated(t *testing.T) {
	kit.Check(t, (Plan{Canary: 1, Rate: 1, Window: 1}).Validate())
	err := (Plan{Canary: -1, Rate: -2, Window: -3}).Validate()
	for _, text := range []string{"Plan.Canary is -1", "Plan.Rate is -2", "Plan.Window is -3"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v does not say: %s", err, text)
		}
	}
}
