// Answers every event as it came.
import {run} from "udo-operator";

run({processBatch: (batch) => batch});
