package schema_test

import (
	"strings"
	"testing"

	"github.com/watermill-once/once/schema"
)

func TestConfigErrorNamesField(t *testing.T) {
	tests := map[string]struct {
		config schema.Config
		want   string // "" if the config is valid
	}{
		"zero value":             {schema.Config{}, ""},
		"schema and prefix":      {schema.Config{Schema: "App1", Prefix: "_o"}, ""},
		"unknown dialect":        {schema.Config{Dialect: "oracle"}, "Dialect"},
		"schema with a quote":    {schema.Config{Schema: `a"b`}, "Schema"},
		"schema with an escape":  {schema.Config{Schema: `a'b`}, "Schema"},
		"schema for SQLite":      {schema.Config{Dialect: schema.SQLite, Schema: "app"}, "Schema"},
		"prefix with a space":    {schema.Config{Prefix: "once "}, "Prefix"},
		"prefix with a digit":    {schema.Config{Prefix: "1once_"}, "Prefix"},
		"prefix outside ASCII":   {schema.Config{Prefix: "önce_"}, "Prefix"},
		"prefix with a NUL":      {schema.Config{Prefix: "a\x00"}, "Prefix"},
		"inbox by day":           {schema.Config{Inbox: schema.ByDay}, ""},
		"inbox by hour":          {schema.Config{Inbox: "by_hour"}, "Inbox"},
		"inbox by day in SQLite": {schema.Config{Dialect: schema.SQLite, Inbox: schema.ByDay}, "Inbox"},
		"sent log by day":        {schema.Config{Sent: schema.ByDay}, ""},
		"sent log by hour":       {schema.Config{Sent: "by_hour"}, "Sent"},
		"sent log in SQLite":     {schema.Config{Dialect: schema.SQLite, Sent: schema.ByDay}, "Sent"},
		"longest prefix":         {schema.Config{Prefix: strings.Repeat("p", 63-len("parked_quarantined"))}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := test.config.Validate()
			switch {
			case test.want == "" && err != nil:
				t.Fatalf("a valid config is refused: %v", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), "schema: "+test.want)):
				t.Fatalf("error is %v, want one that names %s", err, test.want)
			}
		})
	}
}

// Trap 31. Names that would exceed 63 bytes are refused. PostgreSQL truncates longer
// names, so two prefixes that differ only after byte 63 would share their tables.
func TestTrap31NamesLongerThan63BytesAreRefused(t *testing.T) {
	longest := strings.Repeat("p", 63-len("parked_quarantined"))
	if err := (schema.Config{Prefix: longest + "x"}).Validate(); err == nil {
		t.Fatal("a prefix is accepted, but an index name is longer than 63 bytes")
	}
	if err := (schema.Config{Schema: strings.Repeat("s", 64)}).Validate(); err == nil {
		t.Fatal("a schema of 64 bytes is accepted")
	}
}

func TestConfigErrorNamesAllInvalidFields(t *testing.T) {
	err := schema.Config{Dialect: "oracle", Schema: "a b", Prefix: "c d"}.Validate()
	for _, field := range []string{"Dialect", "Schema", "Prefix"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("error %v does not name %s", err, field)
		}
	}
}

func TestTableIsQuotedAndQualified(t *testing.T) {
	if got := (schema.Config{}).Table("outbox"); got != `"once_outbox"` {
		t.Errorf("got %s", got)
	}
	if got := (schema.Config{Schema: "App", Prefix: "x_"}).Table("outbox"); got != `"App"."x_outbox"` {
		t.Errorf("got %s", got)
	}
}
