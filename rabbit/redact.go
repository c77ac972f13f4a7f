package rabbit

import (
	"errors"
	"regexp"
)

// Everything between "//" and the last "@" of a word. That is too much where a
// path has an "@", which does no harm.
var userinfo = regexp.MustCompile(`//[^\s"]*@`)

// redact takes credentials in URLs out of an error's text. Every error that
// was not made here passes through it before it is logged or returned. An
// error that had any is replaced, or unwrapping it would show them again.
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
