# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
#
# The gate: which checks there are, the submission that they judge, their results,
# and what is kept of them. What a check itself may call is in check-api.sh.

CHECKS_DIR=$ROOT/scripts/gate/checks
GATE_GROUPS="form build behaviour sanitizers mutants numbers"

# shellcheck source=scripts/lib/hash.sh
. "$ROOT/scripts/lib/hash.sh"
# shellcheck source=scripts/lib/queues.sh
. "$ROOT/scripts/lib/queues.sh"
# shellcheck source=scripts/gate/checks.sh
. "$ROOT/scripts/gate/checks.sh"
# shellcheck source=scripts/gate/changes.sh
. "$ROOT/scripts/gate/changes.sh"
# shellcheck source=scripts/gate/submission.sh
. "$ROOT/scripts/gate/submission.sh"
# shellcheck source=scripts/gate/switches.sh
. "$ROOT/scripts/gate/switches.sh"
# shellcheck source=scripts/gate/run.sh
. "$ROOT/scripts/gate/run.sh"
# shellcheck source=scripts/gate/coverage.sh
. "$ROOT/scripts/gate/coverage.sh"
# shellcheck source=scripts/gate/report.sh
. "$ROOT/scripts/gate/report.sh"
# shellcheck source=scripts/gate/selftest.sh
. "$ROOT/scripts/gate/selftest.sh"
