package certs

import (
	"bytes"
	"maps"
	"strings"
	"testing"
	"time"
)

var someDay = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newIdentity(t *testing.T, now time.Time) identity {
	t.Helper()
	id, _, err := ensureIdentity(nil, []string{serverName}, now)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func TestEnsureIdentity(t *testing.T) {
	held, other := newIdentity(t, someDay), newIdentity(t, someDay)
	foreignLeaf, err := issueLeaf(other.ca, []string{serverName}, someDay)
	if err != nil {
		t.Fatal(err)
	}
	with := func(changes map[string][]byte) map[string][]byte {
		data := held.data()
		maps.Copy(data, changes)
		return data
	}
	names := []string{serverName}
	for name, test := range map[string]struct {
		data           map[string][]byte
		names          []string
		after          time.Duration
		newLeaf, newCA bool
		reason         string
	}{
		"an empty Secret gets all":                    {nil, names, 0, true, true, "no CA yet"},
		"a good one is kept":                          {held.data(), names, 0, false, false, ""},
		"a good one is kept while its clock is ahead": {held.data(), names, -time.Hour, false, false, ""},
		"more than a third of the life is left":       {held.data(), names, leafLife*2/3 - time.Hour, false, false, ""},
		"a third of the life is left":                 {held.data(), names, leafLife * 2 / 3, true, false, "due for renewal at 2026-10-30"},
		"the certificate expired":                     {held.data(), names, leafLife + time.Hour, true, false, "expired"},
		"a name was added":                            {held.data(), []string{serverName, "more"}, 0, true, false, "not more"},
		"the certificate is garbage":                  {with(map[string][]byte{"tls.crt": []byte("x")}), names, 0, true, false, "parsing tls.crt"},
		"the key is another's":                        {with(map[string][]byte{"tls.key": other.leaf.keyPEM}), names, 0, true, false, "does not match"},
		"another CA signed it": {
			with(map[string][]byte{"tls.crt": foreignLeaf.certPEM, "tls.key": foreignLeaf.keyPEM}), names, 0, true, false, "unknown authority",
		},
		"the certificate was emptied":       {with(map[string][]byte{"tls.crt": nil, "tls.key": nil}), names, 0, true, false, "parsing tls.crt"},
		"the CA is garbage":                 {with(map[string][]byte{"ca.crt": []byte("x")}), names, 0, true, true, "parsing ca.crt"},
		"the CA's key is gone":              {with(map[string][]byte{"ca.key": nil}), names, 0, true, true, "parsing ca.crt and ca.key"},
		"the CA's key is another's":         {with(map[string][]byte{"ca.key": other.ca.keyPEM}), names, 0, true, true, "does not match"},
		"the CA is a serving certificate":   {with(map[string][]byte{"ca.crt": held.leaf.certPEM, "ca.key": held.leaf.keyPEM}), names, 0, true, true, "not a CA"},
		"the CA expired":                    {held.data(), names, caLife + time.Hour, true, true, "ca.crt expired at 2036"},
		"the CA would expire before a leaf": {held.data(), names, caLife - leafLife + time.Hour, true, true, "within the life"},
	} {
		t.Run(name, func(t *testing.T) {
			now := someDay.Add(test.after)
			got, made, err := ensureIdentity(test.data, test.names, now)
			if err != nil {
				t.Fatal(err)
			}
			if made.leaf != test.newLeaf || made.ca != test.newCA {
				t.Errorf("new leaf %t, new CA %t, want %t, %t (%v)", made.leaf, made.ca, test.newLeaf, test.newCA, made.reason)
			}
			if made.leaf && !strings.Contains(made.reason.Error(), test.reason) {
				t.Errorf("reason %q, want %q", made.reason, test.reason)
			}
			if _, again, err := ensureIdentity(got.data(), test.names, now); err != nil || again.leaf {
				t.Errorf("not good enough for itself: %v, %v", again.reason, err)
			}
			if got.leaf.cert.NotAfter.After(got.ca.cert.NotAfter) {
				t.Error("the serving certificate outlives its CA")
			}
		})
	}
}

func TestWithCA(t *testing.T) {
	ours, theirs, expired := newIdentity(t, someDay).ca, newIdentity(t, someDay).ca, newIdentity(t, someDay.Add(-2*caLife)).ca
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, test := range map[string]struct {
		bundle, want []byte
		added        bool
	}{
		"an empty bundle becomes ours":                 {nil, ours.certPEM, true},
		"a placeholder is replaced":                    {[]byte("\n"), ours.certPEM, true},
		"garbage is replaced":                          {[]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ours.certPEM, true},
		"another's CA is kept":                         {theirs.certPEM, join(theirs.certPEM, ours.certPEM), true},
		"an expired one is dropped":                    {join(expired.certPEM, theirs.certPEM), join(theirs.certPEM, ours.certPEM), true},
		"ours alone is left as it is":                  {ours.certPEM, ours.certPEM, false},
		"ours among others is left as it is":           {join(expired.certPEM, []byte("# note\n"), ours.certPEM), join(expired.certPEM, []byte("# note\n"), ours.certPEM), false},
		"a private key in the bundle is not passed on": {theirs.keyPEM, ours.certPEM, true},
	} {
		t.Run(name, func(t *testing.T) {
			got, added := withCA(test.bundle, ours, someDay)
			if added != test.added || !bytes.Equal(got, test.want) {
				t.Errorf("added %t, want %t; bundle\n%s\nwant\n%s", added, test.added, got, test.want)
			}
		})
	}
}
