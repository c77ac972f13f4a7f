package oncetest

// tx wraps the open transaction of a conn.
type tx struct{ *conn }

func (t tx) Commit() error {
	if t.gone {
		return errLost
	}
	t.call.commit()
	var fault kind
	if t.delivery != nil {
		fault = t.delivery.commit()
	}
	if fault == lost {
		return t.lose()
	}
	err := t.tx.Commit()
	t.tx = nil
	if err == nil && fault == lostAfterCommit {
		return t.lose()
	}
	return err
}

func (t tx) Rollback() error {
	if t.delivery != nil {
		t.delivery.rollback()
	}
	if t.gone {
		return errLost
	}
	inner := t.tx
	t.tx = nil
	return inner.Rollback()
}
