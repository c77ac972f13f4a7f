package rabbit

import (
	"errors"
	"regexp"
)

// userinfo matches from "//" to the last "@" of a word. If a URL without credentials
// has an "@" in its path, it matches a part of the path, too. This does no harm.
var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact removes credentials in URLs from the text of an error. Every error of another
// package must be redacted before it is logged or returned. An error that contains
// credentials is replaced by its redacted text, because unwrapping it would show them.
func redact(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if safe := redactText(text); safe != text {
		return errors.New(safe)
	}
	return err
}

func redactText(text string) string {
	return userinfo.ReplaceAllString(text, "//***@")
}
