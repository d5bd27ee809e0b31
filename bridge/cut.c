// The parts of a packed result: one tensor a batch over the memory of the one buffer. In Python that took longer than
// all the rest of a small job: the layout had to be built, and each part took four calls of torch.
#include "collect.h"

static int64_t rows_of(const gf_job *job, int64_t batch) {
  int64_t rows = 0;
  for (int64_t e = batch; e < job->entries; e += job->batches) rows += job->rows[e];
  return rows;
}

static int append_part(gf_job *job, const gf_quick *q, int64_t start, int64_t rows) {
  PyObject *part = gf_quick_cut(job->outs[0], q, job->dim, start, rows);
  int rc = part == NULL ? -1 : PyList_Append(job->result, part);
  Py_XDECREF(part);
  return rc;
}

// A buffer that this call has made, or a contiguous one of the caller.
static int is_simple(const gf_job *job) {
  int32_t odd = job->out_odd[0];
  return job->kind == GF_KIND_TORCH && Py_TYPE((PyObject *)job->outs[0]) == (PyTypeObject *)gf_hooks.tensor &&
         (odd < 0 || job->arrays[odd].contiguous);
}

// Appends the parts of the buffer to the result, which also gets the buffer. Returns 1, or 0 with the result as it was
// where Python has to cut: other libraries' arrays, strided buffers, an older torch.
int gf_append_parts(gf_job *job) {
  gf_quick q;
  if (!is_simple(job) || !gf_quick_read(job->outs[0], &q)) return 0;
  Py_ssize_t before = PyList_GET_SIZE((PyObject *)job->result);
  int64_t start = 0;
  int rc = 0;
  for (int64_t b = 0; rc == 0 && b < job->batches; b++) {
    int64_t rows = rows_of(job, b);
    rc = append_part(job, &q, start, rows);
    start += rows;
  }
  if (rc == 0) rc = PyObject_SetAttrString(job->result, "_buffer", job->outs[0]);
  if (rc == 0) return 1;
  PyErr_Clear();
  PyList_SetSlice(job->result, before, PyList_GET_SIZE((PyObject *)job->result), NULL);
  return 0;
}
