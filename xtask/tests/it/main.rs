//! Tests of the rules and parsers of the automation.
