// Package properties reads the properties file of a client, and has what the two programs share.
package properties

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
)

// Count is how many records each program writes and reads back.
const Count = 100

// The exit codes that a login or a permission that is missing ends with.
const (
	WrongPassword = 3
	NotAllowed    = 4
)

// Read returns the settings of a file.
func Read(path string) map[string]string {
	text, err := os.ReadFile(path)
	Must(err)
	found := map[string]string{}
	for _, line := range strings.Split(string(text), "\n") {
		name, value, ok := strings.Cut(line, "=")
		if ok && !strings.HasPrefix(line, "#") {
			found[name] = value
		}
	}
	if found["security.protocol"] != "SASL_SSL" || found["sasl.mechanism"] != "SCRAM-SHA-512" {
		Must(fmt.Errorf("%s is not for SASL_SSL with SCRAM-SHA-512", path))
	}
	return found
}

// TLS trusts the authority of the file only.
func TLS(settings map[string]string) *tls.Config {
	text, err := os.ReadFile(settings["ssl.ca.location"])
	Must(err)
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		Must(fmt.Errorf("%s has no certificate", settings["ssl.ca.location"]))
	}
	return &tls.Config{RootCAs: pool}
}

// Must ends the program with 1 for an error.
func Must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
