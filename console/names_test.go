package console_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/watermill-once/once/internal/test/kit"
)

// hostileNames are names that a page, a URL or a form could take for one another.
var hostileNames = []string{
	"A1", "A1 ", "A1   ", "   A1", " A1 ", "A1\t", "A1\n", "A1\r\n", "A1\r", "\nA1", "A\n1", "a1", "A1/../B", "../A1", "/", "A1/", "A1%2F",
	"A1+B", "A1 B", "A1  B", "A1\u00a0B", "0", "A1;B", "A1&all=1", "A1=", `"A1"`, `"A1\n"`, `A1\n`, "A1\u200b", "\uff211", "e\u0301",
	"\u00e9", "#", "?", ".", "*", "%", "%zz", "A1,B", "<A1>", "[A1]", "null", "true", "any", "A1%00", strings.Repeat("x", 200),
}

// browser changes the values of hidden fields as browsers do it when they send a form.
func browser(form url.Values) url.Values {
	for _, values := range form {
		for i, value := range values {
			value = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(value)
			values[i] = strings.ReplaceAll(value, "\n", "\r\n")
		}
	}
	return form
}

// href returns the first link on a page that begins with prefix and contains all parts.
func (b *bench) href(a answer, prefix string, parts ...string) string {
	b.Helper()
	for _, found := range regexp.MustCompile(` href="([^"]*)"`).FindAllStringSubmatch(a.text, -1) {
		target := unescape(found[1])
		lacks := func(part string) bool { return !strings.Contains(target+"&", part+"&") }
		if strings.HasPrefix(target, prefix) && !slices.ContainsFunc(parts, lacks) {
			return target
		}
	}
	b.Fatalf("no link to %s on\n%s", prefix, a.text)
	return ""
}

// filterAgain sends the filter form of a page as a browser sends it, and returns the
// page.
func (b *bench) filterAgain(a answer, page string) answer {
	b.Helper()
	form := regexp.MustCompile(`(?s)<form class="filter" method="get" action="` + page + `".*?</form>`).FindString(a.text)
	query := url.Values{}
	for _, input := range regexp.MustCompile(`<input (?:type="[^"]*" )?name="([^"]*)" value="([^"]*)"`).FindAllStringSubmatch(form, -1) {
		query.Set(unescape(input[1]), strings.NewReplacer("\r", "", "\n", "").Replace(unescape(input[2])))
	}
	return b.get(page + "?" + query.Encode())
}

func (b *bench) texts(query string) (all []string) {
	b.Helper()
	return kit.Lines(b, b, query)
}

// A person opens a message, follows the link of a name, filters once more, and changes
// all messages that match. Only the messages with exactly this name are changed.
func TestTrap114_ChangeIsOfTheNameThatWasClicked(t *testing.T) {
	b := quickBench(t, nil)
	for i, name := range hostileNames {
		id := fmt.Sprint("m", i)
		b.die(name, id, "", "x", "exhausted", "no queue")
		b.publish("orders", id, name, "x", nil)
		b.quarantine(name, "orders", message.NewMessage(id, nil), errors.New("failed"))
		b.park("mail", "orders", "p"+id, name)
	}
	for _, c := range []struct{ area, page, filter, do, left string }{
		{"dead", "letter", "topic", "discard-dead", `SELECT topic FROM once_outbox_dead ORDER BY id`},
		{"outbox", "message", "key", "cancel", `SELECT ordering_key FROM once_outbox ORDER BY position`},
		{"quarantine", "entry", "consumer", "discard", `SELECT consumer FROM once_parked WHERE state = 'quarantined' ORDER BY id`},
		{"parked", "parked-message", "key", "discard-parked", `SELECT ordering_key FROM once_parked WHERE state = 'waiting' ORDER BY id`},
	} {
		left := b.texts(c.left)
		if !slices.Equal(left, hostileNames) {
			t.Fatalf("%s has %q", c.area, left)
		}
		for _, name := range hostileNames {
			page := b.get(c.area + "?" + url.Values{c.filter: {name}}.Encode())
			one := b.get(b.href(page, c.page+"?id="))
			list := b.filterAgain(b.get(b.href(one, c.area+"?"+c.filter+"=")), c.area)
			form := browser(b.fields(b.get(b.href(list, "change?", "do="+c.do)), "change"))
			form.Set("why", "test")
			b.follow(b.do(http.MethodPost, "change", form))
			left = slices.DeleteFunc(left, func(other string) bool { return other == name })
			if now := b.texts(c.left); !slices.Equal(now, left) {
				t.Fatalf("%s of %s %q: %q are left, want %q", c.do, c.filter, name, now, left)
			}
		}
	}
}

// Names that a browser would show alike look different.
func TestBlanksInNamesAreShown(t *testing.T) {
	b := quickBench(t, nil)
	for name, want := range map[string]string{
		"A1   ": "A1\u2423\u2423\u2423", " A1": "\u2423A1", "  ": "\u2423\u2423", "A  1": "A  1", "A\n1": `A\n1`, "A1\t": `A1\t`,
		"A\u00a01": `A\u00a01`, "A1\r": `A1\u000d`,
	} {
		id := b.quarantine(name, name, message.NewMessage(name, nil), errors.New("failed"))
		for _, page := range []string{"quarantine", "entry?id=" + itoa(id)} {
			if text := b.get(page).text; !strings.Contains(text, `<bdi class="exact">`+want+`</bdi>`) {
				t.Errorf("%s does not show %q as %q", page, name, want)
			}
		}
	}
}

// A filter that the console cannot read, or that a page does not have, is never left
// out: more messages than the person has asked for would be shown or changed.
func TestFilterIsNeverIgnored(t *testing.T) {
	b := quickBench(t, nil)
	b.seed()
	for page, want := range map[string]string{
		"outbox?topic=orders.placed&tenant=%zz":        "cannot be read",
		"change?do=discard-dead&all=1&key=a;b":         "cannot be read",
		"dead?consumer=payments":                       "no filter here",
		"dead?key=A1&key=A2":                           "2 values",
		"parked?group=7":                               "no filter here",
		"quarantine?key=A1":                            "no filter here",
		"sent?reason=failed":                           "no filter here",
		"audit?topic=orders.placed":                    "no filter here",
		"change?do=cancel&topic=orders.placed&group=7": "no filter here",
		"change?do=pause&topic=orders.placed&key=A1":   "no filter here",
		"change?do=release&key=customer-9&id=1":        "no filter here",
		"dead?key.quoted=A1":                           "in double quotes",
		"dead?key.quoted=%22a%5Cx00%22":                "characters that no message can contain",
		"trace?message=a&message=b":                    "2 values",
		"audit?actor=a&actor=b":                        "2 values",
		"dead?key=%ff":                                 "characters that no message can contain",
		"dead?from=2026-05-01T12:00%20":                "is not a time",
		"change?do=replay&consumer=payments&rate=%201": "is not a number",
	} {
		a := b.do(http.MethodGet, page, nil)
		if a.StatusCode != http.StatusBadRequest || !strings.Contains(unescape(a.text), want) {
			t.Errorf("%s: status is %d, and %q is missing:\n%s", page, a.StatusCode, want, a.text)
		}
	}
	if text := b.get("change?do=cancel&topic=orders.placed&tenant=acme&force=1").text; !strings.Contains(text, "Nothing.") {
		t.Errorf("messages of other tenants would be cancelled:\n%s", text)
	}
}
